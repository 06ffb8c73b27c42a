"""Clients of one server."""

import os
import socket
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import _admin, _tls
from ._native import BaseClient, check_key_helper
from ._tls import Tls
from .serde import Deserializer, LegacyWrappingSerde, Serde, Serializer

Server = tuple[str, int] | str
Key = str | bytes

#: The default time limit of a call, in seconds.
TIMEOUT = 1.0
#: The default time limit for opening a connection, in seconds.
CONNECT_TIMEOUT = 0.25

#: pymemcache's default limit for pooled connections.
_POOL_SIZE_MAX = 2**31

#: Advice for arguments that this client does not support.
_REPLACEMENTS = {"tls_context": "use tls=True or tls=larder_client.Tls(ca_file=..., cert_file=..., key_file=...)"}

#: Clients of this process. A forked child process must not share their sockets.
_clients: "weakref.WeakSet[_Client]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in _clients:
        client._drop_connections()


os.register_at_fork(after_in_child=_after_fork_in_child)


def normalize_server_spec(server: Server) -> Server:
    """Returns a pair of host and port, or the path of a unix socket. Accepts such a pair, `HOST`, `HOST:PORT`, `[V6]`,
    `[V6]:PORT`, `/PATH` or `unix:PATH`. The default port is 11211."""
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
    """Returns a server's address in the format of the Rust client."""
    if isinstance(server, str):
        return f"unix:{server}"
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse(**arguments: Any) -> None:
    """Raises `ValueError` for pymemcache arguments that this client does not support."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"larder_client does not support {name}: {_REPLACEMENTS.get(name, 'omit it')}")


class _Client(BaseClient):
    """The common part of the two clients for one server."""

    def _set_up(
        self,
        server: Server,
        serde: Serde | None,
        serializer: Serializer | None,
        deserializer: Deserializer | None,
        socket_module: ModuleType,
        key_prefix: str | bytes,
        tls: Tls | bool | None,
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
            tls=_tls.settings(tls),
            **settings,
        )
        _clients.add(self)

    set_multi = BaseClient.set_many
    get_multi = BaseClient.get_many
    delete_multi = BaseClient.delete_many
    disconnect_all = BaseClient.close

    def quit(self) -> None:
        """Closes the connections. The next call opens a new connection."""
        self.close()

    def stats(self, *args: str | bytes) -> dict[bytes, Any]:
        """Returns a page of statistics. The arguments name the page. Without arguments, returns the general page. With
        `ignore_exc`, returns an empty page after a failure. Numbers are `int` and other values are `bytes`, except
        those that pymemcache converts to `float` or `bool`."""
        try:
            return _admin.stats(self, args)
        except Exception:
            if self.ignore_exc:
                return {}
            raise

    def cache_memlimit(self, memlimit: int) -> bool:
        """Sets the server's memory limit for items, in megabytes. Returns True."""
        return _admin.cache_memlimit(self, memlimit)

    def raw_command(self, command: str | bytes, end_tokens: str | bytes = "\r\n") -> bytes:
        """Sends a command over a connection of its own, and returns the reply up to `end_tokens`."""
        return _admin.raw_command(self, command, end_tokens)

    def shutdown(self, graceful: bool = False) -> None:
        """Shuts down the server. The server's options must permit shutdown by clients."""
        _admin.shutdown(self, graceful)


class Client(_Client):
    """A client of one server with one connection. Threads may share the client, but it carries out only one call at a
    time.

    The arguments are pymemcache's, with these differences: `socket_keepalive` and `tls_context` are not supported,
    `socket_module` must be the standard library's, and TCP_NODELAY is always set. `tls` encrypts the connections, and
    is `True` or a `Tls` with settings. docs/python.md lists all differences.
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
        tls: Tls | bool | None = None,
    ) -> None:
        _refuse(socket_keepalive=socket_keepalive, tls_context=tls_context)
        self._set_up(
            server,
            serde,
            serializer,
            deserializer,
            socket_module,
            key_prefix,
            tls,
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
        """Returns a key as sent to the server, including the prefix."""
        return check_key_helper(key, self.allow_unicode_keys, key_prefix)


class PooledClient(_Client):
    """A client of one server for any number of threads. By default, all calls share one connection, and one write can
    carry the requests of several threads. With `max_pool_size` or `pool_idle_timeout`, each call uses a connection of
    its own from a pool. While `max_pool_size` connections are in use, further calls wait in line. The pool closes
    connections that have been idle for `pool_idle_timeout` seconds.

    The other arguments are those of `Client`. `lock_generator` is not supported.
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
        tls: Tls | bool | None = None,
    ) -> None:
        _refuse(socket_keepalive=socket_keepalive, tls_context=tls_context, lock_generator=lock_generator)
        # `pool_idle_timeout` without a size also creates a pool, because only a pool closes idle connections. A size of
        # 0 is equivalent to None.
        max_pool_size = max_pool_size or (_POOL_SIZE_MAX if pool_idle_timeout else None)
        if max_pool_size is not None and (not isinstance(max_pool_size, int) or max_pool_size < 0):
            raise ValueError('"max_pool_size" must be a positive integer, or 0 or None for no pool')
        self._set_up(
            server,
            serde,
            serializer,
            deserializer,
            socket_module,
            key_prefix,
            tls,
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
        """Returns a key as sent to the server, including the prefix."""
        return check_key_helper(key, self.allow_unicode_keys, self.key_prefix)
