"""Checks that a server under attack still serves other clients, with bounded memory."""

import contextlib
import statistics
import threading
import time
from pathlib import Path

from server import MIB, TIMEOUT_SECS

# Maximum total size of the buffers of all connections, including an allowance for the allocator.
BUFFERS_BYTES_MAX = 32 * MIB
# Limits of the duration of an exchange. The duration excludes the time for which the client's and the server's threads
# wait for a processor, because that time depends on other load on the machine.
MEDIAN_SECS_MAX = 0.02
SLOWEST_SECS_MAX = 1.0
TURNS_MIN = 100


def waited_secs(folder):
    """Returns the time in seconds for which a runnable thread waited for a processor, according to the kernel's
    statistics. Returns 0 if the kernel has no such statistics."""
    try:
        return int((folder / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Bystander(threading.Thread):
    """A well-behaved client that sets and gets on its own connection until it is stopped."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.done = server, threading.Event()
        self.sock = server.connect()
        self.replies = self.sock.makefile("rb")
        self.took, self.broken = [], None

    def waited_secs(self):
        """Returns the total waiting time of this thread and of all threads of the server, in seconds."""
        tasks = Path(f"/proc/{self.server.pid}/task").iterdir()
        return waited_secs(Path("/proc/thread-self")) + sum(map(waited_secs, tasks))

    def exchange(self):
        """Sets and gets once. Returns the duration without waiting times."""
        waited, began = self.waited_secs(), time.monotonic()
        self.sock.sendall(b"set bystander 0 0 5\r\nvalue\r\nget bystander\r\n")
        lines = [self.replies.readline() for _ in range(4)]
        took = time.monotonic() - began
        expected = [b"STORED\r\n", b"VALUE bystander 0 5\r\n", b"value\r\n", b"END\r\n"]
        assert lines == expected, lines
        return max(0.0, took - (self.waited_secs() - waited))

    def run(self):
        try:
            while not self.done.wait(0.002):
                self.took.append(self.exchange())
        except Exception as error:
            self.broken = error

    def await_exchanges(self):
        """Waits until the client has completed `TURNS_MIN` more exchanges, or until the timeout."""
        enough, deadline = len(self.took) + TURNS_MIN, time.monotonic() + TIMEOUT_SECS
        while len(self.took) < enough and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self):
        self.done.set()
        self.join()
        self.sock.close()


@contextlib.contextmanager
def bounded(server, grown_bytes_max=BUFFERS_BYTES_MAX):
    """Checks that memory stays bounded and the server still serves a bystander while the `with` block runs an
    attack."""
    before = server.rss()
    bystander = Bystander(server)
    bystander.start()
    try:
        yield
        bystander.await_exchanges()
    finally:
        bystander.stop()
    grown = server.rss_peak() - before
    assert server.alive(), server.output()
    assert not bystander.broken, f"{bystander.broken!r}"
    assert grown <= grown_bytes_max, f"{grown / MIB:.1f} MiB more resident"
    assert len(bystander.took) >= TURNS_MIN
    assert statistics.median(bystander.took) <= MEDIAN_SECS_MAX, statistics.median(bystander.took)
    assert max(bystander.took) <= SLOWEST_SECS_MAX, max(bystander.took)


def ask(server, request):
    """Sends `request` on a new connection. Returns the first line of the reply."""
    with server.connect() as sock, sock.makefile("rb") as replies:
        sock.sendall(request)
        return replies.readline()
