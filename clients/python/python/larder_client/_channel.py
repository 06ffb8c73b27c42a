"""The connection of asyncio clients to one server, and the calls that share it."""

import asyncio
import os
import socket
import ssl
import weakref
from typing import Any, cast

from . import _tls
from ._native import Channel
from ._tls import Tls
from .client import Server, _address

#: Channels of this process. A forked child process must not share their sockets.
_channels: "weakref.WeakSet[_Channel]" = weakref.WeakSet()

#: Connections that a forked child process has inherited. This list keeps them alive: closing a transport in the child
#: would also affect the parent's loop.
_inherited: list[Any] = []


def _after_fork_in_child() -> None:
    connections = [channel._leave() for channel in list(_channels)]
    sockets = [connection.socket() for connection in connections if connection is not None]
    _inherited.extend(connections)
    if any(sockets):
        # Replaces the sockets with /dev/null. The descriptors stay valid, but a loop that continues in the child can no
        # longer use the parent's sockets.
        null_device = os.open(os.devnull, os.O_RDWR)
        for inherited in sockets:
            if inherited is not None and inherited.fileno() >= 0:
                os.dup2(null_device, inherited.fileno())
        os.close(null_device)


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Connection(asyncio.Protocol):
    """A connection of a channel. The channel may drop the connection at any time. A dropped connection ignores events,
    and aborts its transport if the transport opens later."""

    def __init__(self, channel: "_Channel") -> None:
        self._channel = channel
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast without a check, because uvloop's transports are not derived from asyncio.Transport.
        self.transport = opened = cast(asyncio.Transport, transport)
        if self._channel._connection is self:
            self._channel._opened(opened)
        else:
            opened.abort()

    def socket(self) -> Any:
        """Returns the socket, or `None` before the connection is open."""
        return None if self.transport is None else self.transport.get_extra_info("socket")

    def data_received(self, data: bytes) -> None:
        if self._channel._connection is self:
            self._channel._receive(data)

    def pause_writing(self) -> None:
        if self._channel._connection is self:
            self._channel._pause()

    def resume_writing(self) -> None:
        if self._channel._connection is self:
            self._channel._resume()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._channel._connection is self and self.transport is not None:
            if isinstance(error, ssl.SSLError):
                # Pass no `errno`, because the `errno` of this exception is a number of OpenSSL, not of the system.
                self._channel._lost(None, _tls.describe(error, self._channel.name))
                return
            number = error.errno if isinstance(error, OSError) else None
            self._channel._lost(number, None if error is None else str(error))


class _Channel(Channel):
    """The calls to one server, and the connection that they share."""

    def __init__(
        self, server: Server, connect_timeout: float | None, tls: Tls | None, **settings: Any
    ) -> None:
        self.server = server
        self.connect_timeout = connect_timeout
        #: The host of the server. With TLS, this is the name that the server's certificate must contain.
        self.name = "localhost" if isinstance(server, str) else server[0]
        #: TLS arguments for the loop's functions that open connections.
        self._encryption: dict[str, Any] = {}
        if tls is not None:
            self.name = tls.name_of(self.name)
            self._encryption = {"ssl": tls.context, "server_hostname": self.name}
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._configure(name=_address(server), **settings)
        _channels.add(self)

    def _open(self) -> None:
        """Starts opening a connection."""
        self._connection = _Connection(self)
        self._opening = asyncio.get_running_loop().create_task(self._connect(self._connection))

    async def _connect(self, connection: _Connection) -> None:
        try:
            await asyncio.wait_for(self._dial(connection), self.connect_timeout)
        except BaseException as error:
            if self._connection is connection and connection.transport is None:
                self._connection = None
                self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
            self._failed(None, True, "timeout: no connection by the deadline")
        elif isinstance(error, ssl.SSLError) or (isinstance(error, OSError) and not str(error)):
            self._failed(None, False, _tls.describe(error, self.name))
        elif isinstance(error, OSError) and not isinstance(error, socket.gaierror):
            self._failed(error.errno, False, str(error))
        else:
            self._failed(None, False, str(error) or type(error).__name__)

    async def _dial(self, connection: _Connection) -> None:
        """Tries the server's addresses in order, and connects to the first one that accepts."""
        loop = asyncio.get_running_loop()
        if isinstance(self.server, str):
            await loop.create_unix_connection(lambda: connection, self.server, **self._encryption)
            return
        addresses = await _addresses(*self.server)
        end = None if self.connect_timeout is None else loop.time() + self.connect_timeout
        for left in range(len(addresses), 0, -1):
            host, port = addresses[len(addresses) - left]
            # Each remaining address gets an equal share of the remaining time, so an unresponsive address leaves time
            # for the others.
            share = None if end is None else (end - loop.time()) / left
            try:
                opening = loop.create_connection(lambda: connection, host, port, **self._encryption)
                await asyncio.wait_for(opening, share)
                return
            except (OSError, asyncio.TimeoutError):
                if left == 1:
                    raise

    def _drop(self) -> None:
        """Closes the connection at once, or cancels the attempt to open it."""
        connection, self._connection = self._connection, None
        opening, self._opening = self._opening, None
        # Do nothing if the loop is closed: it has no tasks and accepts no calls.
        if connection is None or connection.loop.is_closed():
            return
        if connection.transport is not None:
            connection.transport.abort()
        elif opening is not None:
            opening.cancel()

    def _leave(self) -> _Connection | None:
        """Detaches the connection and the calls from the channel. The calls get no results, and the connection stays
        open. Returns the connection."""
        connection, self._connection, self._opening = self._connection, None, None
        self._forget()
        return connection

    def end(self) -> None:
        """Fails the calls under way, and closes the connection."""
        self._end()
        self._drop()


async def _addresses(host: str, port: int) -> list[tuple[str, int]]:
    """Returns the addresses of a host. The loop resolves a name in a thread. An IP address needs no lookup."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return [(host, port)]
        except OSError:
            pass
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(address[0]), port) for *_, address in found))
