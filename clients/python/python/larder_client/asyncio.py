"""Clients for asyncio, with pymemcache's names: each call is a coroutine.

    import asyncio
    from larder_client.asyncio import Client

    async def main():
        async with Client("localhost:11211") as cache:
            await cache.set("user:1", "ann", expire=60)
            print(await cache.get("user:1"))  # b"ann"

    asyncio.run(main())

All tasks of a loop share one connection per server. One write usually carries all calls that start in the same
iteration of the loop. Requests are pipelined: the client sends a request without waiting for the replies to earlier
requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast

from . import _admin, _tls
from ._channel import _Channel
from ._failover import Attempts, Failover, grouped, may_move
from ._native import check_key_helper
from ._tls import Tls
from .client import CONNECT_TIMEOUT, TIMEOUT, Key, Server, _refuse, normalize_server_spec
from .exceptions import MemcacheError
from .hash import Hasher, RendezvousHash
from .serde import Deserializer, LegacyWrappingSerde, Serde, Serializer

__all__ = ["Client", "HashClient"]

_T = TypeVar("_T")


class _Client:
    """The common part of the clients for one server and for several servers."""

    def __init__(
        self,
        serde: Serde | None,
        serializer: Serializer | None,
        deserializer: Deserializer | None,
        connect_timeout: float | None,
        timeout: float | None,
        ignore_exc: bool,
        key_prefix: str | bytes,
        default_noreply: bool,
        allow_unicode_keys: bool,
        encoding: str,
        tls_context: None,
        tls: Tls | bool | None,
    ) -> None:
        _refuse(tls_context=tls_context)
        if isinstance(key_prefix, str):
            key_prefix = key_prefix.encode("ascii")
        if not isinstance(key_prefix, bytes):
            raise TypeError("key_prefix should be bytes.")
        self.serde: Serde = serde or LegacyWrappingSerde(serializer, deserializer)
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.ignore_exc = ignore_exc
        self.key_prefix = key_prefix
        self.default_noreply = default_noreply
        self.allow_unicode_keys = allow_unicode_keys
        self.encoding = encoding
        self.tls = _tls.settings(tls)
        self._is_plain = isinstance(self.serde, LegacyWrappingSerde) and self.serde.is_plain
        #: Whether `ignore_exc` also applies to the exceptions of calls that change items.
        self._ignores_all = False

    def _channel_of(self, server: Server) -> _Channel:
        return _Channel(
            server,
            self.connect_timeout,
            self.tls,
            timeout=self.timeout,
            key_prefix=self.key_prefix,
            allow_unicode_keys=self.allow_unicode_keys,
            serde=None if self._is_plain else self.serde,
            encoding=self.encoding,
        )

    def _channels(self) -> Iterable[_Channel]:
        raise NotImplementedError

    def _of(self, key: Key) -> _Channel:
        """Returns the channel to the server of a key."""
        raise NotImplementedError

    def _by_channel(self, keys: Iterable[Key]) -> dict[_Channel, list[Key]]:
        """Groups keys by the channels to their servers."""
        raise NotImplementedError

    async def _in_batches(
        self,
        keys: Iterable[Key],
        call: Callable[[_Channel, list[Key]], Awaitable[_T]],
        skipped: Callable[[list[Key]], _T] | None,
    ) -> list[_T]:
        """Calls each server with its keys, and returns the results. If a call fails, its result is that of `skipped`.
        With `None`, raises the exception."""

        async def of(channel: _Channel, batch: list[Key]) -> _T:
            try:
                return await call(channel, batch)
            except Exception:
                if skipped is None:
                    raise
                return skipped(batch)

        return await _together([of(channel, batch) for channel, batch in self._by_channel(keys).items()])

    def _noreply(self, noreply: bool | None) -> bool:
        return self.default_noreply if noreply is None else noreply

    def _value(self, key: Key, found: tuple[bytes, int]) -> Any:
        return self.serde.deserialize(key, *found)

    def _value_and_cas(self, key: Key, found: tuple[bytes, int, bytes]) -> tuple[Any, bytes]:
        value, flags, cas = found
        return self.serde.deserialize(key, value, flags), cas

    async def __aenter__(self: _T) -> _T:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Calls under way fail. The next call opens a new connection."""
        for channel in self._channels():
            channel.end()
        # Yield once, because the loop closes sockets only in its next iteration.
        await asyncio.sleep(0)

    quit = close
    disconnect_all = close

    async def get(self, key: Key, default: Any = None) -> Any:
        """Returns the value of an item, or `default` if the item does not exist."""
        try:
            found = await self._of(key).get(key)
            if found is None:
                return default
            return found if self._is_plain else self.serde.deserialize(key, *found)
        except Exception:
            if self.ignore_exc:
                return default
            raise

    async def gets(self, key: Key, default: Any = None, cas_default: Any = None) -> tuple[Any, Any]:
        """Returns the value of an item and its CAS, or `(default, cas_default)` if the item does not exist."""
        try:
            found = await self._of(key).gets(key)
            return (default, cas_default) if found is None else self._value_and_cas(key, found)
        except Exception:
            if self.ignore_exc:
                return default, cas_default
            raise

    async def gat(self, key: Key, expire: int = 0, default: Any = None) -> Any:
        """Sets the expiry of an item and returns its value, or `default` if the item does not exist."""
        return (await self.gats(key, expire, default))[0]

    async def gats(self, key: Key, expire: int = 0, default: Any = None, cas_default: Any = None) -> tuple[Any, Any]:
        """Sets the expiry of an item and returns its value and CAS, or `(default, cas_default)` if the item does not
        exist."""
        try:
            found = await self._of(key).gats(key, expire)
            return (default, cas_default) if found is None else self._value_and_cas(key, found)
        except Exception:
            if self.ignore_exc:
                return default, cas_default
            raise

    async def get_many(self, keys: Iterable[Key]) -> dict[Any, Any]:
        """Returns a dictionary with the values of the keys that exist. Sends one batch of requests to each server."""
        return await self._look_up(keys, False, self._value)

    async def gets_many(self, keys: Iterable[Key]) -> dict[Any, tuple[Any, Any]]:
        """Returns a dictionary with pairs of value and CAS for the keys that exist. Sends one batch of requests to each
        server."""
        return await self._look_up(keys, True, self._value_and_cas)

    async def _look_up(self, keys: Iterable[Key], cas: bool, convert: Callable[[Key, Any], Any]) -> dict[Any, Any]:
        async def look_up(channel: _Channel, keys: list[Key]) -> dict[Any, Any]:
            found = await channel.get_many(keys, cas)
            if self._is_plain and not cas:
                return found
            return {key: convert(key, item) for key, item in found.items()}

        try:
            parts = await self._in_batches(keys, look_up, (lambda _: {}) if self.ignore_exc else None)
        except Exception:
            if self.ignore_exc:
                return {}
            raise
        return {key: value for part in parts for key, value in part.items()}

    async def _change(
        self, key: Key, start: Callable[[_Channel], Any], noreply: bool | None, noreply_result: bool | None = True
    ) -> Any:
        """Changes one item. Returns the result of the call. With `noreply`, returns `noreply_result`. After an ignored
        exception, returns `False`."""
        try:
            result = await start(self._of(key))
        except Exception:
            if self._ignores_all:
                return False
            raise
        return noreply_result if self._noreply(noreply) else result

    async def _store(
        self, mode: str, key: Key, value: Any, expire: int, noreply: bool | None, flags: int | None
    ) -> bool | None:
        try:
            stored = await self._of(key).store(mode, key, value, expire, flags)
        except Exception:
            if self._ignores_all:
                return False
            raise
        return True if self._noreply(noreply) else stored

    async def set(
        self, key: Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Stores an item, whether or not it exists. Returns True, even with `noreply`."""
        return await self._store("set", key, value, expire, noreply, flags)

    async def add(
        self, key: Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Stores an item if it does not exist. Returns whether the item was stored. With `noreply`, always returns
        True."""
        return await self._store("add", key, value, expire, noreply, flags)

    async def replace(
        self, key: Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Stores an item if it exists. Returns whether the item was stored. With `noreply`, always returns True."""
        return await self._store("replace", key, value, expire, noreply, flags)

    async def append(
        self, key: Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Appends to a value. Returns whether the item existed. With `noreply`, always returns True."""
        return await self._store("append", key, value, expire, noreply, flags)

    async def prepend(
        self, key: Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Prepends to a value. Returns whether the item existed. With `noreply`, always returns True."""
        return await self._store("prepend", key, value, expire, noreply, flags)

    async def cas(
        self,
        key: Key,
        value: Any,
        cas: int | str | bytes,
        expire: int = 0,
        noreply: bool = False,
        flags: int | None = None,
    ) -> bool | None:
        """Stores an item if the current item has this CAS. Returns True if the item was stored, False if the current
        item has another CAS, and None if there is no current item. With `noreply`, always returns True."""
        stored: bool | None = await self._change(
            key, lambda channel: channel.cas(key, value, cas, expire, flags), noreply
        )
        return stored

    async def set_many(
        self, values: Mapping[Any, Any], expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> list[Any]:
        """Stores the items of a dictionary. Sends one batch of requests to each server. Returns the keys that were not
        stored. With `noreply`, returns only the keys of servers whose exceptions were ignored."""

        async def store(channel: _Channel, keys: list[Key]) -> list[Any]:
            failed = await channel.set_many([(key, values[key]) for key in keys], expire, flags)
            return [] if self._noreply(noreply) else failed

        parts = await self._in_batches(values, store, list if self._ignores_all else None)
        return [key for part in parts for key in part]

    async def delete(self, key: Key, noreply: bool | None = None) -> bool:
        """Removes an item. Returns whether the item existed. With `noreply`, always returns True."""
        found: bool = await self._change(key, lambda channel: channel.delete(key), noreply)
        return found

    async def delete_many(self, keys: Iterable[Key], noreply: bool | None = None) -> bool:
        """Removes items. Sends one batch of requests to each server. Returns True, even if exceptions were ignored."""

        async def delete(channel: _Channel, keys: list[Key]) -> None:
            await channel.delete_many(keys)

        await self._in_batches(keys, delete, (lambda _: None) if self._ignores_all else None)
        return True

    set_multi = set_many
    get_multi = get_many
    gets_multi = gets_many
    delete_multi = delete_many

    async def incr(self, key: Key, value: int, noreply: bool = False) -> int | None:
        """Adds `value` to a number, modulo 2^64. Returns the new number, or None if the item does not exist. With
        `noreply`, always returns None."""
        number: int | None = await self._change(key, lambda channel: channel.count(key, value, False), noreply, None)
        return number

    async def decr(self, key: Key, value: int, noreply: bool = False) -> int | None:
        """Subtracts `value` from a number, but not below 0. Returns the new number, or None if the item does not exist.
        With `noreply`, always returns None."""
        number: int | None = await self._change(key, lambda channel: channel.count(key, value, True), noreply, None)
        return number

    async def touch(self, key: Key, expire: int = 0, noreply: bool | None = None) -> bool:
        """Sets the expiry of an item. Returns whether the item exists. With `noreply`, always returns True."""
        found: bool = await self._change(key, lambda channel: channel.touch(key, expire), noreply)
        return found

    async def flush_all(self, delay: int = 0, noreply: bool | None = None) -> bool:
        """Removes all items from every server, now or after `delay` seconds. Returns True, even if exceptions were
        ignored. If the call raises an exception, some servers may have removed their items."""

        async def of(channel: _Channel) -> None:
            try:
                await channel.flush_all(delay)
            except Exception:
                if not self._ignores_all:
                    raise

        await _together([of(channel) for channel in self._channels()])
        return True


async def _together(calls: list[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Returns the results of the calls, in call order. If some calls fail, waits until all calls have ended, and then
    raises the first exception in call order."""
    if len(calls) == 1:
        return [await calls[0]]
    results = await asyncio.gather(*calls, return_exceptions=True)
    returned: list[_T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        returned.append(result)
    return returned


class Client(_Client):
    """A client of one server for all tasks of an event loop. The tasks share its connection. The client belongs to the
    loop of its first call. Once that loop has stopped, the client belongs to the loop of the next call.

    The arguments are those of `larder_client.Client`, except `socket_module` and `socket_keepalive`. A call takes at
    most `timeout` seconds, including the time to open a connection. With `ignore_exc`, failed lookups are misses. See
    docs/python.md.
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
        key_prefix: str | bytes = b"",
        default_noreply: bool = True,
        allow_unicode_keys: bool = False,
        encoding: str = "ascii",
        tls_context: None = None,
        tls: Tls | bool | None = None,
    ) -> None:
        super().__init__(
            serde,
            serializer,
            deserializer,
            connect_timeout,
            timeout,
            ignore_exc,
            key_prefix,
            default_noreply,
            allow_unicode_keys,
            encoding,
            tls_context,
            tls,
        )
        self.server = normalize_server_spec(server)
        self._channel = self._channel_of(self.server)

    def _channels(self) -> Iterable[_Channel]:
        return [self._channel]

    def _of(self, key: Key) -> _Channel:
        return self._channel

    def _by_channel(self, keys: Iterable[Key]) -> dict[_Channel, list[Key]]:
        keys = list(keys)
        return {self._channel: keys} if keys else {}

    def check_key(self, key: Key) -> bytes:
        """Returns a key as sent to the server, including the prefix."""
        return check_key_helper(key, self.allow_unicode_keys, self.key_prefix)

    async def version(self) -> bytes:
        """Returns the server's version."""
        return await self._channel.version()

    async def stats(self, topic: str = "") -> dict[bytes, Any]:
        """Returns a page of statistics. `topic` is one word. Without a topic, returns the general page. With
        `ignore_exc`, returns an empty page after a failure. Values are converted as in the clients for threads."""
        try:
            page = await self._channel.stats(topic)
        except Exception:
            if self.ignore_exc:
                return {}
            raise
        return {name: _admin._converted(name, value) for name, value in page}


class HashClient(_Client):
    """A client of several servers for all tasks of an event loop. Each key belongs to one server. With the default
    `hasher`, a key belongs to the same server as with `HashClient` for threads and with pymemcache.

    After repeated failures of a server, calls to it fail at once for a short time. The keys of that server move to other
    servers only with `failover`: if a call has changed nothing, for example because the connection was refused, the
    client repeats it on the next server. Calls that time out and calls whose change may have happened still fail. With `ignore_exc`, failed lookups are misses, failed changes of one item return False, `set_many`
    counts the keys of the failed server as not stored, and `delete_many` and `flush_all` return True. The other
    arguments are those of `Client`.
    """

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
        key_prefix: str | bytes = b"",
        ignore_exc: bool = False,
        allow_unicode_keys: bool = False,
        default_noreply: bool = True,
        encoding: str = "ascii",
        tls_context: None = None,
        tls: Tls | bool | None = None,
        failover: bool = False,
    ) -> None:
        super().__init__(
            serde,
            serializer,
            deserializer,
            connect_timeout,
            timeout,
            ignore_exc,
            key_prefix,
            default_noreply,
            allow_unicode_keys,
            encoding,
            tls_context,
            tls,
        )
        self.failover = failover
        self._others = Failover(hasher)
        self._ignores_all = ignore_exc
        self.hasher = hasher()
        self._by_name: dict[str, _Channel] = {}
        for server in servers:
            self.add_server(server)

    def add_server(self, server: Server) -> None:
        """Adds a server. The new server gets its share of the keys."""
        server = normalize_server_spec(server)
        name = self._name(server)
        if name not in self._by_name:
            self._by_name[name] = self._channel_of(server)
            self.hasher.add_node(name)
            self._others.forget()

    def remove_server(self, server: Server) -> None:
        """Removes a server. The other servers get its keys, and calls under way to the removed server fail."""
        name = self._name(normalize_server_spec(server))
        self.hasher.remove_node(name)
        channel = self._by_name.pop(name)
        self._others.forget()
        channel.end()

    @staticmethod
    def _name(server: Server) -> str:
        return server if isinstance(server, str) else "{}:{}".format(*server)

    def _channels(self) -> Iterable[_Channel]:
        return list(self._by_name.values())

    def _server_name(self, key: Key, attempts: Attempts) -> str:
        """Returns the name of a key's server, without the servers that have failed in the call."""
        check_key_helper(key, self.allow_unicode_keys, self.key_prefix)
        if attempts.failed:
            name = self._others.get_node(key, lambda: self._by_name, attempts.failed)
        else:
            name = self.hasher.get_node(key)
        if name is None:
            raise attempts.error or MemcacheError("there are no servers")
        return name

    def _of(self, key: Key) -> _Channel:
        name = self._server_name(key, Attempts())
        return cast(_Channel, _MovingCalls(self, key)) if self.failover else self._by_name[name]

    def _by_channel(self, keys: Iterable[Key]) -> dict[_Channel, list[Key]]:
        attempts = Attempts()
        batches, _ = grouped(keys, lambda key: self._server_name(key, attempts))
        return {self._by_name[name]: batch for name, batch in batches.items()}

    async def _call(self, key: Key, call: Callable[[_Channel], Awaitable[_T]]) -> _T:
        """Calls the server of a key. If the call has changed nothing and may move, calls the next server."""
        attempts = Attempts()
        while True:
            name = self._server_name(key, attempts)
            try:
                return await call(self._by_name[name])
            except Exception as error:
                if not may_move(error):
                    raise
                attempts.add(name, error)

    async def _in_batches(
        self,
        keys: Iterable[Key],
        call: Callable[[_Channel, list[Key]], Awaitable[_T]],
        skipped: Callable[[list[Key]], _T] | None,
    ) -> list[_T]:
        if not self.failover:
            return await super()._in_batches(keys, call, skipped)
        attempts = Attempts()
        results: list[_T] = []
        left = list(keys)

        async def of(name: str, channel: _Channel, batch: list[Key]) -> None:
            try:
                results.append(await call(channel, batch))
            except Exception as error:
                if may_move(error):
                    attempts.add(name, error)
                    left.extend(batch)
                elif skipped is None:
                    raise
                else:
                    results.append(skipped(batch))

        while left:
            try:
                batches, _ = grouped(left, lambda key: self._server_name(key, attempts))
            except Exception:
                if attempts.error is None or skipped is None:
                    raise
                return [*results, skipped(left)]
            left.clear()
            await _together([of(name, self._by_name[name], batch) for name, batch in batches.items()])
        return results


class _MovingCalls:
    """The calls of a channel for one key. A call that has changed nothing moves to the next server."""

    def __init__(self, client: HashClient, key: Key) -> None:
        self._client = client
        self._key = key

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        return lambda *args: self._client._call(self._key, lambda channel: getattr(channel, name)(*args))
