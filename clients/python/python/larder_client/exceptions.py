"""The exceptions of the clients, with pymemcache's names.

A call raises `TimeoutError`, which is also `socket.timeout`, when a time limit has passed,
`MemcacheUnexpectedCloseError` if the server has closed the connection, and `OSError` or another of its subclasses if
the connection fails otherwise. The attribute `is_ambiguous` of these exceptions and of every `MemcacheError` says
whether the requested change may have happened.

Administrative commands set `is_ambiguous` only if the server has closed the connection: it is True then, and False for
error replies. Each `OSError` of these commands lacks it. They are `stats`, `cache_memlimit`, `raw_command` and
`shutdown` of the clients for threads.
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

# The default for exceptions that are raised without setting it: most are about arguments, before anything is sent.
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
