"""The exceptions of the clients, with pymemcache's names.

A call raises `TimeoutError`, which is also `socket.timeout`, when a time limit has passed,
`MemcacheUnexpectedCloseError` if the server has closed the connection, and `OSError` or another of its subclasses if
the connection fails otherwise. The attribute `is_ambiguous` of these exceptions and of every `MemcacheError` says
whether the requested change may have happened.

Administrative commands do not set `is_ambiguous`: the exceptions derived from `MemcacheError` have its default, False,
even if the command may have been executed, and each `OSError` lacks it. These commands are `stats`, `cache_memlimit`,
`raw_command` and `shutdown` of the clients for threads.
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
