"""A client of several servers. Each key belongs to one server. By default, a key belongs to the same server as with
pymemcache."""

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from . import _tls
from ._failover import Attempts, Failover, grouped, may_move
from ._native import check_key_helper, murmur3_32
from ._tls import Tls
from .client import CONNECT_TIMEOUT, TIMEOUT, Client, Key, PooledClient, Server, normalize_server_spec
from .exceptions import MemcacheError
from .serde import Deserializer, Serde, Serializer


class RendezvousHash:
    """Rendezvous hashing (highest random weight): each pair of node and key has a hash, and a key belongs to the node
    whose pair with the key has the highest hash. Adding or removing a node moves only keys to or from that node."""

    def __init__(
        self,
        nodes: list[str] | None = None,
        seed: int = 0,
        hash_function: Callable[[str, int], int] = murmur3_32,
    ) -> None:
        self.nodes: list[str] = [] if nodes is None else nodes
        self.seed = seed
        self.hash_function: Callable[[str], int] = lambda text: hash_function(text, seed)

    def add_node(self, node: str) -> None:
        if node not in self.nodes:
            # Replaces the list instead of changing it, because another thread may be iterating over the list.
            self.nodes = [*self.nodes, node]

    def remove_node(self, node: str) -> None:
        if node not in self.nodes:
            raise ValueError(f"No such node {node} to remove")
        self.nodes = [other for other in self.nodes if other != node]

    def get_node(self, key: Key) -> str | None:
        """Returns the node of a key, or `None` if there are no nodes."""
        # Like pymemcache, hashes keys of type `bytes` in their printed form, with a `b` and quotes.
        return max(self.nodes, key=lambda node: (self.hash_function(f"{node}-{key!s}"), str(node)), default=None)


class Hasher(Protocol):
    """An algorithm that chooses the server of a key."""

    def add_node(self, node: str) -> None: ...

    def remove_node(self, node: str) -> None: ...

    def get_node(self, key: Key) -> str | None: ...


#: The result of a call that was not sent, or whose exception was ignored.
_SKIPPED = object()


class _Failures:
    """The number of failed retries of a server, and the time of the last failure."""

    def __init__(self) -> None:
        self.attempts = 0
        self.time = time.time()

    def repeat(self) -> None:
        self.attempts += 1
        self.time = time.time()


class HashClient:
    """A client of several servers, for any number of threads.

    After a failure, the client retries a server up to `retry_attempts` times, at least `retry_timeout` seconds apart.
    Between the retries, the client sends no calls to the server and raises no exceptions: lookups are misses, and
    changes of one item return False. After the last failed retry, the server is dead. The other servers get its keys
    until the client adds it again, after `dead_timeout` seconds.

    With `failover`, these three arguments have no effect, and a failed server causes no exceptions: if a call has
    changed nothing, for example because the connection was refused, the client repeats it on the next server. After
    five failures in a row, calls use the other servers at once, except for probes, until a probe succeeds. Calls that
    time out and calls whose change may have happened still fail. A server that becomes available again without a
    restart still has its old values.

    The other arguments are those of `Client`, or of `PooledClient` with `use_pooling`.
    """

    #: The client class to create for each server if `use_pooling` is not set.
    client_class: type[Client] = Client

    def __init__(
        self,
        servers: Iterable[Server],
        hasher: Callable[[], Hasher] = RendezvousHash,
        serde: Serde | None = None,
        serializer: Serializer | None = None,
        deserializer: Deserializer | None = None,
        connect_timeout: float | None = CONNECT_TIMEOUT,
        timeout: float | None = TIMEOUT,
        no_delay: bool = True,
        socket_module: ModuleType = socket,
        socket_keepalive: None = None,
        key_prefix: str | bytes = b"",
        max_pool_size: int | None = None,
        pool_idle_timeout: float = 0,
        lock_generator: None = None,
        retry_attempts: int = 2,
        retry_timeout: float = 1,
        dead_timeout: float = 60,
        use_pooling: bool = False,
        ignore_exc: bool = False,
        allow_unicode_keys: bool = False,
        default_noreply: bool = True,
        encoding: str = "ascii",
        tls_context: None = None,
        tls: Tls | bool | None = None,
        failover: bool = False,
    ) -> None:
        self.clients: dict[str, Client | PooledClient] = {}
        self.hasher = hasher()
        self.failover = failover
        self._others = Failover(hasher)
        self.retry_attempts = retry_attempts
        self.retry_timeout = retry_timeout
        self.dead_timeout = dead_timeout
        self.use_pooling = use_pooling
        self.key_prefix = key_prefix.encode("ascii") if isinstance(key_prefix, str) else key_prefix
        self.ignore_exc = ignore_exc
        self.allow_unicode_keys = allow_unicode_keys
        self.encoding = encoding
        self.default_kwargs: dict[str, Any] = {
            "serde": serde,
            "serializer": serializer,
            "deserializer": deserializer,
            "connect_timeout": connect_timeout,
            "timeout": timeout,
            "no_delay": no_delay,
            "socket_module": socket_module,
            "socket_keepalive": socket_keepalive,
            "key_prefix": key_prefix,
            "allow_unicode_keys": allow_unicode_keys,
            "default_noreply": default_noreply,
            "encoding": encoding,
            "tls_context": tls_context,
            # The clients of all servers share these settings, so the files are read only once.
            "tls": _tls.settings(tls),
        }
        if use_pooling:
            pooling = {"max_pool_size": max_pool_size, "pool_idle_timeout": pool_idle_timeout}
            self.default_kwargs.update(pooling, lock_generator=lock_generator)
        self._failed_clients: dict[Server, _Failures] = {}
        self._dead_clients: dict[Server, float] = {}
        self._last_dead_check_time = time.time()
        for server in servers:
            self.add_server(normalize_server_spec(server))

    @staticmethod
    def _make_client_key(server: Server) -> str:
        return server if isinstance(server, str) else "{}:{}".format(*server)

    @staticmethod
    def _server(server: Server, port: int | None) -> Server:
        if port is None:
            return server
        if not isinstance(server, str):
            raise TypeError("Server must be a string when passing port.")
        return server, port

    def add_server(self, server: Server, port: int | None = None) -> None:
        """Adds a server. The new server gets its share of the keys."""
        server = self._server(server, port)
        kind: Callable[..., Client | PooledClient] = PooledClient if self.use_pooling else self.client_class
        name = self._make_client_key(server)
        self.clients[name] = kind(server, **self.default_kwargs)
        self.hasher.add_node(name)
        self._others.forget()

    def remove_server(self, server: Server, port: int | None = None) -> None:
        """Marks a server as dead. The other servers get its keys until the client adds it again, after `dead_timeout`
        seconds."""
        server = self._server(server, port)
        self._failed_clients.pop(server, None)
        self._dead_clients[server] = time.time()
        self.hasher.remove_node(self._make_client_key(server))
        self._others.forget()

    def _revive(self) -> None:
        """Adds servers again after they have been dead for `dead_timeout` seconds. Checks the dead servers at most once
        per `dead_timeout`."""
        now = time.time()
        if now - self._last_dead_check_time <= self.dead_timeout:
            return
        self._last_dead_check_time = now
        for server, since in list(self._dead_clients.items()):
            # If several threads run this code concurrently, `pop` succeeds in only one of them, and that thread adds
            # the server.
            if now - since > self.dead_timeout and self._dead_clients.pop(server, None) is not None:
                self.add_server(server)

    def _name(self, key: Key, failed: frozenset[str]) -> str | None:
        """Returns the name of a key's server, without the servers that have `failed` in the call."""
        check_key_helper(key, self.allow_unicode_keys, self.key_prefix)
        if self._dead_clients:
            self._revive()
        return self._others.get_node(key, self._names, failed) if failed else self.hasher.get_node(key)

    def _names(self) -> list[str]:
        dead = {self._make_client_key(server) for server in list(self._dead_clients)}
        return [name for name in list(self.clients) if name not in dead]

    def _get_client(self, key: Key) -> Client | PooledClient | None:
        name = self._name(key, frozenset())
        if name is not None:
            return self.clients[name]
        if self.ignore_exc:
            return None
        raise MemcacheError("All servers seem to be down right now")

    def _mark_failed_server(self, server: Server) -> None:
        failures = self._failed_clients.get(server)
        if failures is not None:
            failures.repeat()
        elif self.retry_attempts > 0:
            self._failed_clients[server] = _Failures()
        else:
            self._declare_dead(server)

    def _declare_dead(self, server: Server) -> None:
        # Do nothing if another thread has already marked the server as dead.
        if server not in self._dead_clients:
            self.remove_server(server)

    def _call(self, client: Client | PooledClient, call: Callable[[], Any], default: Any) -> Any:
        """Calls a server and returns the result. If the server has failed within `retry_timeout` and has retries left,
        returns `default` without a call. With `ignore_exc`, also returns `default` after an exception."""
        server = client.server
        if self.failover:
            return self._ignoring(call, default)
        failures = self._failed_clients.get(server)
        try:
            if failures is None:
                return call()
            if failures.attempts >= self.retry_attempts:
                self._declare_dead(server)
                return call()
            if time.time() - failures.time <= self.retry_timeout:
                return default
            result = call()
            self._failed_clients.pop(server, None)
            return result
        except Exception as error:
            if isinstance(error, OSError):
                self._mark_failed_server(server)
            if not self.ignore_exc:
                raise
            return default

    def _ignoring(self, call: Callable[[], Any], default: Any) -> Any:
        try:
            return call()
        except Exception:
            if not self.ignore_exc:
                raise
            return default

    def _run(self, name: str, key: Key, default: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.failover:
            return self._run_on_any(name, key, default, args, kwargs)
        client = self._get_client(key)
        if client is None:
            return default
        return self._call(client, lambda: getattr(client, name)(key, *args, **kwargs), default)

    def _run_on_any(self, call: str, key: Key, default: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the server of a key. If the call has changed nothing and may move, calls the next server."""
        attempts = Attempts()
        while True:
            name = self._name(key, attempts.failed)
            if name is None:
                return self._no_server(attempts, default)
            try:
                return getattr(self.clients[name], call)(key, *args, **kwargs)
            except Exception as error:
                if may_move(error):
                    attempts.add(name, error)
                elif self.ignore_exc:
                    return default
                else:
                    raise

    def _no_server(self, attempts: Attempts, default: Any = None) -> Any:
        if self.ignore_exc:
            return default
        raise attempts.error or MemcacheError("All servers seem to be down right now")

    def _in_batches(
        self,
        keys: Iterable[Key],
        call: Callable[[Client | PooledClient, list[Key]], None],
        skip: Callable[[list[Key]], None],
    ) -> None:
        """Calls `call` for each server with its keys. Calls `skip` with the keys of servers that were skipped or whose exceptions
        were ignored."""
        attempts = Attempts()
        batches, unassigned = grouped(keys, lambda key: self._name_for_batch(key, attempts))
        while True:
            if unassigned:
                skip(unassigned)
                self._no_server(attempts)
            moved: list[Key] = []
            for name, batch in batches.items():
                if self._run_batch(name, batch, call, skip, attempts):
                    moved += batch
            if not moved:
                return
            batches, unassigned = grouped(moved, lambda key: self._name_for_batch(key, attempts))

    def _name_for_batch(self, key: Key, attempts: Attempts) -> str | None:
        if self.failover:
            return self._name(key, attempts.failed)
        client = self._get_client(key)
        return None if client is None else self._make_client_key(client.server)

    def _run_batch(
        self,
        name: str,
        batch: list[Key],
        call: Callable[[Client | PooledClient, list[Key]], None],
        skip: Callable[[list[Key]], None],
        attempts: Attempts,
    ) -> bool:
        """Calls a server with its keys. Returns whether the keys move to other servers."""
        client = self.clients[name]
        if not self.failover:
            if self._call(client, lambda: call(client, batch), _SKIPPED) is _SKIPPED:
                skip(batch)
            return False
        try:
            call(client, batch)
        except Exception as error:
            if may_move(error):
                attempts.add(name, error)
                return True
            if not self.ignore_exc:
                raise
            skip(batch)
        return False

    def close(self) -> None:
        """Closes all connections. The next calls open new connections."""
        for client in list(self.clients.values()):
            client.close()

    disconnect_all = close
    quit = close

    def get(self, key: Key, default: Any = None, **kwargs: Any) -> Any:
        return self._run("get", key, default, (default,), kwargs)

    def gets(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("gets", key, None, args, kwargs)

    def gat(self, key: Key, expire: int = 0, default: Any = None) -> Any:
        return self._run("gat", key, default, (expire, default), {})

    def gats(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("gats", key, None, args, kwargs)

    def set(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("set", key, False, args, kwargs)

    def add(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("add", key, False, args, kwargs)

    def replace(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("replace", key, False, args, kwargs)

    def append(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("append", key, False, args, kwargs)

    def prepend(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("prepend", key, False, args, kwargs)

    def cas(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("cas", key, False, args, kwargs)

    def incr(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("incr", key, False, args, kwargs)

    def decr(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("decr", key, False, args, kwargs)

    def touch(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("touch", key, False, args, kwargs)

    def delete(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._run("delete", key, False, args, kwargs)

    def delete_many(self, keys: Iterable[Key], *args: Any, **kwargs: Any) -> bool:
        """Removes items. Sends one batch of requests to each server. Returns True, even if servers were skipped or
        their exceptions were ignored."""

        def delete(client: Client | PooledClient, batch: list[Key]) -> None:
            client.delete_many(batch, *args, **kwargs)

        self._in_batches(keys, delete, lambda _: None)
        return True

    delete_multi = delete_many

    def set_many(self, values: Mapping[Any, Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Stores items. Sends one batch of requests to each server. Returns the keys that were not stored. With
        `noreply`, returns only the keys of servers that were skipped or whose exceptions were ignored."""
        failed: list[Any] = []

        def store(client: Client | PooledClient, batch: list[Key]) -> None:
            failed.extend(client.set_many({key: values[key] for key in batch}, *args, **kwargs))

        self._in_batches(values, store, failed.extend)
        return failed

    set_multi = set_many

    def get_many(self, keys: Iterable[Key], gets: bool = False, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Returns a dictionary with the values of the keys that exist. With `gets`, the dictionary contains pairs of
        value and CAS instead of values. Sends one batch of requests to each server."""
        found: dict[Any, Any] = {}

        def look_up(client: Client | PooledClient, batch: list[Key]) -> None:
            found.update((client.gets_many if gets else client.get_many)(batch, *args, **kwargs))

        self._in_batches(keys, look_up, lambda _: None)
        return found

    get_multi = get_many

    def gets_many(self, keys: Iterable[Key], *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return self.get_many(keys, True, *args, **kwargs)

    gets_multi = gets_many

    def flush_all(self, *args: Any, **kwargs: Any) -> None:
        """Removes all items from the servers, one server after the other. Without `failover`, silently skips a server
        that has failed within `retry_timeout` and has retries left. Unless `ignore_exc` is set, a failure ends the
        call, and the remaining servers keep their items."""
        for client in list(self.clients.values()):
            self._call(client, lambda: client.flush_all(*args, **kwargs), False)
