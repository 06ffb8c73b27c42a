"""A client for memcached, Larder and other servers that speak memcached's protocol, with pymemcache's names.

    from larder_client import PooledClient

    cache = PooledClient("localhost:11211")
    cache.set("user:1", "ann", expire=60)
    cache.get("user:1")  # b"ann"
"""

from ._native import check_key_helper
from ._tls import Tls
from .client import Client, PooledClient, normalize_server_spec
from .exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)
from .hash import HashClient, RendezvousHash

__all__ = [
    "Client",
    "HashClient",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "PooledClient",
    "RendezvousHash",
    "Tls",
    "check_key_helper",
    "normalize_server_spec",
]
