"""A pytest plugin that runs pymemcache's tests with larder_client: it replaces pymemcache's classes with those of
larder_client.

pymemcache's unit tests replace the socket or the pool of a client with a mock. Here, a server sends the mock's replies,
and a test checks the client's results for these replies. Tests that check calls of the mock's socket methods can't
pass. If `LARDER_UPSTREAM_PORT` is set, the tests run with a real server at this port instead.

The plugin writes the names of failed tests to the file that `LARDER_UPSTREAM_FAILED` names.
"""

import contextlib
import errno
import os
import socket
import tempfile
import threading

import larder_client
import larder_client.serde
import pymemcache.client.base
import pymemcache.client.hash
import pymemcache.client.rendezvous
import pymemcache.exceptions
import pymemcache.serde

STORES = {b"set", b"add", b"replace", b"append", b"prepend", b"cas"}
LOOK_UPS = {b"get", b"gets", b"gat", b"gats", b"stats"}
#: The server's replies to requests for which the mock has no reply. pymemcache sends these requests with `noreply`.
USUAL = {b"delete": b"DELETED\r\n", b"incr": b"1\r\n", b"flush_all": b"OK\r\n", **dict.fromkeys(STORES, b"STORED\r\n")}

#: The server's reply for each exception that a mock raises instead of a reply.
ANSWERS = {
    larder_client.MemcacheClientError: b"CLIENT_ERROR mock\r\n",
    larder_client.MemcacheUnknownError: b"UNKNOWN\r\n",
}


class Script:
    """A server that sends the replies of a mock."""

    def __init__(self):
        self.mock = None
        self.accepted = 0
        #: The number of connections for administrative commands.
        self.plain = 0
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self.listener.accept()
            self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        # Ignore an error if the client has closed the connection.
        with connection, contextlib.suppress(ConnectionError):
            data = b""
            while piece := connection.recv(1 << 20):
                self.mock.send_bufs.append(piece)
                data += piece
                while (request := self._request(data)) is not None:
                    data = data[len(request) :]
                    if not self._answer(connection, request):
                        return

    @staticmethod
    def _request(data):
        line, end, rest = data.partition(b"\r\n")
        words = line.split()
        value_len = int(words[4]) + 2 if words and words[0] in STORES else 0
        return data[: len(line) + 2 + value_len] if end and len(rest) >= value_len else None

    def _answer(self, connection, request):
        """Sends the mock's reply to a request. Returns whether the connection stays open."""
        verb = request.split()[0]
        answer = b""
        while not self._is_whole(verb, answer):
            if not self.mock.recv_bufs:
                connection.sendall(USUAL.get(verb, b"") if not answer else b"")
                return True
            piece = self.mock.recv_bufs.popleft()
            if isinstance(piece, OSError) and piece.errno == errno.EINTR:
                continue
            piece = ANSWERS.get(type(piece), piece)
            if isinstance(piece, Exception) or not piece:
                return False
            connection.sendall(piece)
            answer += piece
        return True

    @staticmethod
    def _is_whole(verb, answer):
        if verb in LOOK_UPS and answer.startswith((b"VALUE ", b"STAT ", b"ITEM ")):
            return answer.endswith(b"END\r\n")
        return answer.endswith(b"\r\n") or b"LEFTOVER" in answer or b"END\r\n" in answer


class Scripted:
    """A mixin for a client whose server is a `Script`."""

    def __init__(self, server, *args, **kwargs):
        self._script = Script()
        self._is_closed = False
        self._server = larder_client.normalize_server_spec(server)
        super().__init__(self._script.path, *args, **kwargs)

    @property
    def server(self):
        return self._server

    @property
    def sock(self):
        script = self._script
        is_closed = self._is_closed or (script.accepted > script.plain and not self.connections()[0])
        return None if is_closed else script.mock

    @sock.setter
    def sock(self, mock):
        self._script.mock = mock

    @property
    def client_pool(self):
        raise AttributeError("client_pool")

    @client_pool.setter
    def client_pool(self, pool):
        self._script.mock = pool.get().sock

    def __setattr__(self, name, value):
        # A test replaces the method `_connect` with a mock. Calling the mock sets `sock`.
        if name == "_connect":
            value()
        super().__setattr__(name, value)

    def close(self):
        super().close()
        self._is_closed = True

    def quit(self):
        self.close()


def connect_to_script(client):
    """Opens the socket of an administrative command."""
    client._script.plain += 1
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(client.timeout)
    connection.connect(client._script.path)
    return connection


class ScriptedClient(Scripted, larder_client.Client):
    pass


class ScriptedPooledClient(Scripted, larder_client.PooledClient):
    pass


def replace():
    """Replaces the names that tests import from pymemcache."""
    is_real = "LARDER_UPSTREAM_PORT" in os.environ
    if not is_real:
        larder_client._admin._connect = connect_to_script
    classes = {
        "Client": larder_client.Client if is_real else ScriptedClient,
        "PooledClient": larder_client.PooledClient if is_real else ScriptedPooledClient,
        "HashClient": larder_client.HashClient,
        "RendezvousHash": larder_client.RendezvousHash,
        "check_key_helper": larder_client.check_key_helper,
        "normalize_server_spec": larder_client.normalize_server_spec,
    }
    names = {**classes, **vars(larder_client.exceptions), **vars(larder_client.serde)}
    for module in (
        pymemcache,
        pymemcache.client,
        pymemcache.client.base,
        pymemcache.client.hash,
        pymemcache.client.rendezvous,
        pymemcache.exceptions,
        pymemcache.serde,
    ):
        for name in vars(module).keys() & names.keys():
            if not name.startswith("__"):
                setattr(module, name, names[name])


replace()
failed = set()


def pytest_collection_modifyitems(items):
    # Removes the tests of pymemcache's own mock, and the tests of an option that larder_client does not support.
    items[:] = [item for item in items if "TestMockClient" not in item.nodeid and "TestKeepaliveopts" not in item.nodeid]


def pytest_runtest_logreport(report):
    if report.failed:
        failed.add(report.nodeid.rpartition("/")[2])


def pytest_sessionfinish():
    with open(os.environ["LARDER_UPSTREAM_FAILED"], "w") as file:
        file.write("".join(f"{name}\n" for name in sorted(failed)))
