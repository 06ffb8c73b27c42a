"""What an attacked server still owes to everybody else."""

import contextlib
import statistics
import threading
import time

from server import MIB

# What all connections together may hold in buffers, and some room for the allocator.
BUFFERS_BYTES_MAX = 32 * MIB
# On a machine with two cores that it may have to share with a compiler.
MEDIAN_SECS_MAX = 0.02
SLOWEST_SECS_MAX = 1.0
TURNS_MIN = 100


class Bystander(threading.Thread):
    """An ordinary client on a connection of its own, that sets and gets until stopped."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.done = server, threading.Event()
        self.sock = server.connect(timeout=30)
        self.took, self.broken = [], None

    def run(self):
        try:
            replies = self.sock.makefile("rb")
            while not self.done.wait(0.002):
                began = time.monotonic()
                self.sock.sendall(b"set bystander 0 0 5\r\nvalue\r\nget bystander\r\n")
                lines = [replies.readline() for _ in range(4)]
                self.took.append(time.monotonic() - began)
                expected = [b"STORED\r\n", b"VALUE bystander 0 5\r\n", b"value\r\n", b"END\r\n"]
                assert lines == expected, lines
        except Exception as error:
            self.broken = error

    def await_turns(self):
        """Until it was served a few times more, or long enough for it to have been."""
        enough, deadline = len(self.took) + TURNS_MIN, time.monotonic() + 10
        while len(self.took) < enough and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self):
        self.done.set()
        self.join()
        self.sock.close()


@contextlib.contextmanager
def bounded(server, grown_bytes_max=BUFFERS_BYTES_MAX):
    """Runs an attack in its body: memory stays bounded and a bystander is served all the while."""
    before = server.rss()
    bystander = Bystander(server)
    bystander.start()
    try:
        yield
        bystander.await_turns()
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
    """The first line of the answer to `request` on a new connection."""
    with server.connect() as sock, sock.makefile("rb") as replies:
        sock.sendall(request)
        return replies.readline()
