"""Administrative commands. They are rare, so each command opens a connection of its own with the standard library's
`socket`."""

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from . import _tls
from ._native import BaseClient
from .exceptions import (
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)


def _connect(client: BaseClient) -> socket.socket:
    if isinstance(client.server, tuple):
        connected = socket.create_connection(client.server, client.connect_timeout)
    else:
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(client.connect_timeout)
            connected.connect(client.server)
        except BaseException:
            connected.close()
            raise
    if client.tls is not None:
        connected = _encrypted(client, connected)
    connected.settimeout(client.timeout)
    return connected


def _encrypted(client: BaseClient, connected: socket.socket) -> socket.socket:
    """Wraps a connected socket with TLS and completes the handshake. Closes the socket if this fails."""
    name = client.tls.name_of(client.server[0] if isinstance(client.server, tuple) else "localhost")
    try:
        return client.tls.context.wrap_socket(connected, server_hostname=name)  # type: ignore[no-any-return]
    except ssl.SSLError as error:
        connected.close()
        raise OSError(_tls.describe(error, name)) from error
    except BaseException:
        connected.close()
        raise


def _exchange(client: BaseClient, command: bytes, is_complete: Callable[[bytes], bool]) -> bytes:
    """Sends a command. Returns the reply as soon as `is_complete` accepts it. Raises an exception for an error
    reply."""
    answer = b""
    # The offset of the first line that has not been checked for an error.
    unchecked = 0
    with _connect(client) as connected:
        connected.sendall(command + b"\r\n")
        while not is_complete(answer):
            piece = connected.recv(1 << 16)
            if not piece:
                error = MemcacheUnexpectedCloseError("connection closed by the server")
                error.is_ambiguous = True
                raise error
            answer += piece
            while (end := answer.find(b"\r\n", unchecked)) >= 0:
                line = answer[unchecked:end]
                _raise_error(line, command)
                unchecked = end + 2 + _value_len(line)
    return answer


def _value_len(line: bytes) -> int:
    """Returns the length of the value that follows this reply line, including the value's line end. Returns 0 if no
    value follows."""
    words = line.split(b" ")
    index = {b"VALUE": 3, b"VA": 1}.get(words[0])
    if index is None or len(words) <= index or not words[index].isdigit():
        return 0
    return int(words[index]) + 2


def _raise_error(line: bytes, command: bytes) -> None:
    kind, _, words = line.partition(b" ")
    if kind.startswith(b"ERROR"):
        raise MemcacheUnknownCommandError(command)
    if kind == b"CLIENT_ERROR":
        raise MemcacheClientError(words)
    if kind == b"SERVER_ERROR":
        raise MemcacheServerError(words)


def _encoded(client: BaseClient, text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    return text.encode("utf8" if client.allow_unicode_keys else "ascii")


def raw_command(client: BaseClient, command: str | bytes, end_tokens: str | bytes) -> bytes:
    end = _encoded(client, end_tokens) or b"\r\n"
    answer = _exchange(client, _encoded(client, command), lambda answer: end in answer)
    return answer[: answer.index(end)]


def cache_memlimit(client: BaseClient, memlimit: int) -> bool:
    if not isinstance(memlimit, int):
        raise MemcacheIllegalInputError(f"memlimit must be integer, got bad value: {memlimit!r}")
    answer = raw_command(client, b"cache_memlimit %d" % memlimit, b"\r\n")
    if answer != b"OK":
        raise MemcacheUnknownError(answer)
    return True


def shutdown(client: BaseClient, graceful: bool) -> None:
    try:
        raw_command(client, b"shutdown graceful" if graceful else b"shutdown", b"\r\n")
    except (MemcacheUnexpectedCloseError, ConnectionResetError):
        pass


def stats(client: BaseClient, topic: Sequence[str | bytes]) -> dict[bytes, Any]:
    command = b" ".join([b"stats", *(_encoded(client, word) for word in topic)])
    answer = _exchange(client, command, lambda answer: answer.endswith((b"END\r\n", b"OK\r\n", b"RESET\r\n")))
    page: dict[bytes, Any] = {}
    for line in answer.splitlines()[:-1]:
        kind, name, *values = line.split(b" ", 2)
        if kind not in (b"STAT", b"ITEM"):
            raise MemcacheUnknownError(line)
        page[name] = _converted(name, values[0] if values else b"")
    return page


def _converted(name: bytes, value: bytes) -> Any:
    try:
        return _CONVERSIONS.get(name, int)(value)
    except ValueError:
        return value


def _is_not_zero(value: bytes) -> bool:
    return int(value) != 0


def _seconds(value: bytes) -> float:
    return float(value.replace(b":", b"."))


#: pymemcache's conversions for the statistics that it does not convert with `int`.
_CONVERSIONS: dict[bytes, Callable[[bytes], Any]] = {
    b"version": bytes,
    b"rusage_user": _seconds,
    b"rusage_system": _seconds,
    b"hash_is_expanding": _is_not_zero,
    b"slab_reassign_running": _is_not_zero,
    b"inter": bytes,
    b"growth_factor": float,
    b"stat_key_prefix": bytes,
    b"umask": lambda value: int(value, 8),
    b"detail_enabled": _is_not_zero,
    b"cas_enabled": _is_not_zero,
    b"auth_enabled_sasl": lambda value: value == b"yes",
    b"maxconns_fast": _is_not_zero,
    b"slab_reassign": _is_not_zero,
    b"slab_automove": _is_not_zero,
}
