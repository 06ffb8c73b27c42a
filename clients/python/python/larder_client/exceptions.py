"""The exceptions of the clients, with pymemcache's names.

Timeouts are `TimeoutError`, which is also `socket.timeout`. If the server closes the connection, this is
`MemcacheUnexpectedCloseError`; other connection failures are `OSError`. These exceptions have an attribute
`is_ambiguous`: whether the requested change may have happened. (Administrative commands raise the `OSError` of the
standard library without this attribute.)
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
