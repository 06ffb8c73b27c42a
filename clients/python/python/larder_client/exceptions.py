"""The exceptions of the clients, with pymemcache's names.

A call raises `TimeoutError` (the same class as `socket.timeout`) when a time limit has passed. It raises
`MemcacheUnexpectedCloseError` if the server has closed the connection, and `OSError` or a subclass, such as
`ConnectionRefusedError`, if the connection fails for another reason. The attribute `is_ambiguous` of these exceptions
and of every `MemcacheError` states whether the requested change may have happened.

The administrative commands of the clients for threads are `stats`, `cache_memlimit`, `raw_command` and `shutdown`.
Their `is_ambiguous` is True if the server has closed the connection, and False for error replies. Their `OSError`s do
not have this attribute.
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

# The default for exceptions that do not set the attribute. Most of these exceptions report invalid arguments, for which
# the client sent no request.
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
