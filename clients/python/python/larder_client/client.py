"""Clients of one server."""

import os
import socket
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import _plain
from ._native import BaseClient, check_key_helper
from .serde import Deserializer, LegacyWrappingSerde, Serde, Serializer

Server = tuple[str, int] | str
Key = str | bytes

#: Without another `timeout`, a call takes at most so many seconds; without another `connect_timeout`, connecting does.
TIMEOUT = 1.0
CONNECT_TIMEOUT = 0.25

#: pymemcache's limit of connections unless one is given.
_POOL_SIZE_MAX = 2**31

#: Clients of this process, whose sockets a child process must not share.
_clients: "weakref.WeakSet[_Client]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in _clients:
        client._drop_connections()


os.register_at_fork(after_in_child=_after_fork_in_child)


def normalize_server_spec(server: Server) -> Server:
    """A pair of host and port, or the path of a unix socket, of what a server can be given as: such a pair, `HOST`,
    `HOST:PORT`, `[V6]`, `[V6]:PORT`, `/PATH` or `unix:PATH`."""
    if isinstance(server, tuple):
        return server
    if not isinstance(server, str):
        raise ValueError(f"Unsupported server specification: {server!r}")
    if server.startswith(("unix:", "/")):
        return server.removeprefix("unix:")
    host, port = server, "11211"
    if ":" in server and not server.endswith("]"):
        host, _, port = server.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(server: Server) -> str:
    """A server as the Rust client takes it."""
    if isinstance(server, str):
        return f"unix:{server}"
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse(**arguments: Any) -> None:
    """Raises `ValueError` for arguments of pymemcache that can't be honoured here."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"larder_client has no {name}: leave it out")


class _Client(BaseClient):
    """What the two clients of one server share."""

    def _set_up(
        self,
        server: Server,
        serde: Serde | None,
        serializer: Serializer | None,
        deserializer: Deserializer | None,
        socket_module: ModuleType,
        key_prefix: str | bytes,
        **settings: Any,
    ) -> None:
        _refuse(socket_module=None if socket_module is socket else socket_module)
        if isinstance(key_prefix, str):
            key_prefix = key_prefix.encode("ascii")
        if not isinstance(key_prefix, bytes):
            raise TypeError("key_prefix should be bytes.")
        converter = serde or LegacyWrappingSerde(serializer, deserializer)
        server = normalize_server_spec(server)
        self._configure(
            server=server,
            address=_address(server),
            serde=converter,
            is_plain=isinstance(converter, LegacyWrappingSerde) and converter.is_plain,
            key_prefix=key_prefix,
            **settings,
        )
        _clients.add(self)

    set_multi = BaseClient.set_many
    get_multi = BaseClient.get_many
    delete_multi = BaseClient.delete_many
    disconnect_all = BaseClient.close

    def quit(self) -> None:
        """Closes the connections. The next call opens a new one."""
        self.close()

    def stats(self, *args: str | bytes) -> dict[bytes, Any]:
        """A page of statistics: the general one, or the one that the words name. Numbers are `int`, and values that
        are no number are `bytes`, but for some that pymemcache converts to `float` or `bool`."""
        try:
            return _plain.stats(self, args)
        except Exception:
            if self.ignore_exc:
                return {}
            raise

    def cache_memlimit(self, memlimit: int) -> bool:
        """Sets how many megabytes the server uses for items. Returns True."""
        return _plain.cache_memlimit(self, memlimit)

    def raw_command(self, command: str | bytes, end_tokens: str | bytes = "\r\n") -> bytes:
        """Sends any command, over a connection of its own, and returns the answer up to `end_tokens`."""
        return _plain.raw_command(self, command, end_tokens)

    def shutdown(self, graceful: bool = False) -> None:
        """Ends the server, if it was started so that clients may do that."""
        _plain.shutdown(self, graceful)


class Client(_Client):
    """A client of one server with one connection. Threads may share it: one waits for the other.

    The arguments are pymemcache's. `socket_keepalive` and `tls_context` can't be set, `socket_module` can only be the
    standard library's, and TCP_NODELAY is always set. See docs/python.md for what differs.
    """

    def __init__(
        self,
        server: Server,
        serde: Serde | None = None,
        serializer: Serializer | None = None,
        deserializer: Deserializer | None = None,
        connect_timeout: float | None = CONNECT_TIMEOUT,
        timeout: float | None = TIMEOUT,
        no_delay: bool = True,
        ignore_exc: bool = False,
        socket_module: ModuleType = socket,
        socket_keepalive: None = None,
        key_prefix: str | bytes = b"",
        default_noreply: bool = True,
        allow_unicode_keys: bool = False,
        encoding: str = "ascii",
        tls_context: None = None,
    ) -> None:
        _refuse(socket_keepalive=socket_keepalive, tls_context=tls_context)
        self._set_up(
            server,
            serde,
            serializer,
            deserializer,
            socket_module,
            key_prefix,
            timeout=timeout,
            connect_timeout=connect_timeout,
            max_pool_size=1,
            pool_idle_timeout=0,
            allow_unicode_keys=allow_unicode_keys,
            encoding=encoding,
            default_noreply=default_noreply,
            ignore_exc=ignore_exc,
            ignore_keys=False,
        )

    def check_key(self, key: Key, key_prefix: bytes) -> bytes:
        """The bytes that a server gets for a key."""
        return check_key_helper(key, self.allow_unicode_keys, key_prefix)


class PooledClient(_Client):
    """A client of one server for any number of threads. All calls share one connection, and their requests leave together
    where they can. With a `max_pool_size`, each call has a connection to itself, of up to so many: while all are in use,
    calls wait in line. With a `pool_idle_timeout`, each call has one to itself, too, and one that was idle for so many
    seconds is closed.

    The other arguments are those of `Client`. `lock_generator` can't be set.
    """

    def __init__(
        self,
        server: Server,
        serde: Serde | None = None,
        serializer: Serializer | None = None,
        deserializer: Deserializer | None = None,
        connect_timeout: float | None = CONNECT_TIMEOUT,
        timeout: float | None = TIMEOUT,
        no_delay: bool = True,
        ignore_exc: bool = False,
        socket_module: ModuleType = socket,
        socket_keepalive: None = None,
        key_prefix: str | bytes = b"",
        max_pool_size: int | None = None,
        pool_idle_timeout: float = 0,
        lock_generator: Callable[[], Any] | None = None,
        default_noreply: bool = True,
        allow_unicode_keys: bool = False,
        encoding: str = "ascii",
        tls_context: None = None,
    ) -> None:
        _refuse(socket_keepalive=socket_keepalive, tls_context=tls_context, lock_generator=lock_generator)
        # Only a pool has connections that are idle.
        max_pool_size = max_pool_size or (_POOL_SIZE_MAX if pool_idle_timeout else None)
        if max_pool_size is not None and (not isinstance(max_pool_size, int) or max_pool_size < 0):
            raise ValueError('"max_pool_size" must be a positive integer')
        self._set_up(
            server,
            serde,
            serializer,
            deserializer,
            socket_module,
            key_prefix,
            timeout=timeout,
            connect_timeout=connect_timeout,
            max_pool_size=max_pool_size,
            pool_idle_timeout=pool_idle_timeout,
            allow_unicode_keys=allow_unicode_keys,
            encoding=encoding,
            default_noreply=default_noreply,
            ignore_exc=ignore_exc,
            ignore_keys=True,
        )

    def check_key(self, key: Key) -> bytes:
        """The bytes that a server gets for a key."""
        return check_key_helper(key, self.allow_unicode_keys, self.key_prefix)
