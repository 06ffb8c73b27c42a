"""A scripted server in the test process."""

import contextlib
import socket
import struct
import threading

from larder_client import (
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

CLOSE = object()
RESET = object()
SILENCE = object()

#: Replies to a store, the exception that each reply raises, and whether the value may have been stored.
FAILED_STORES = [
    (b"ERROR\r\n", MemcacheUnknownCommandError, True),
    (b"CLIENT_ERROR bad command line format\r\n", MemcacheClientError, False),
    (b"SERVER_ERROR out of memory storing object\r\n", MemcacheServerError, False),
    (b"SERVER_ERROR proxy timeout\r\n", MemcacheServerError, True),
    (b"NONSENSE\r\n", MemcacheUnknownError, True),
    (b"STORED\r\nSTORED\r\n", MemcacheUnknownError, True),
    (CLOSE, MemcacheUnexpectedCloseError, True),
    (RESET, ConnectionResetError, True),
    (SILENCE, TimeoutError, True),
]


class Fake:
    """A context manager for a server that reacts to each received piece of data with the next element of `answers`:
    bytes, `CLOSE`, `RESET` or `SILENCE`. After the last element, the server sends no more replies."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.accepted = 0
        self.requests = []
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        for opened in [self.listener, *self.connections]:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.accepted += 1
                self.connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            while request := connection.recv(1 << 16):
                self.requests.append(request)
                answer = self.answers.pop(0) if self.answers else SILENCE
                if answer is RESET:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if answer in (CLOSE, RESET):
                    connection.close()
                    return
                if answer is not SILENCE:
                    connection.sendall(answer)


@contextlib.contextmanager
def full_backlog():
    """The address of a server that accepts no connections and refuses none: further connections stay unopened."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()
