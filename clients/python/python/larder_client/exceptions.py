"""The exceptions of clients, under pymemcache's names.

Timeouts are `TimeoutError`, which is also `socket.timeout`, and other failures of a connection are `OSError`. These
exceptions have an attribute `is_ambiguous`: whether the change that was asked for may have happened. (The commands for
administrators raise the `OSError` of the standard library, which has none.)
"""

from ._native import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

# Exceptions about arguments are raised before anything is sent.
MemcacheError.is_ambiguous = False

__all__ = [
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
]
