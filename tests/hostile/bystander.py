"""What an attacked server still owes to everybody else."""

import contextlib
import statistics
import threading
import time
from pathlib import Path

from server import MIB, TIMEOUT_SECS

# What all connections together may hold in buffers, and some room for the allocator.
BUFFERS_BYTES_MAX = 32 * MIB
# How long an exchange may take, but for the time in which the client's thread and the server's threads
# waited for a processor: that is the machine's doing, which may have much else to do.
MEDIAN_SECS_MAX = 0.02
SLOWEST_SECS_MAX = 1.0
TURNS_MIN = 100


def waited_secs(folder):
    """How long a thread was ready to run and was not run, as the kernel counts it; 0 if it does not."""
    try:
        return int((folder / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Bystander(threading.Thread):
    """An ordinary client on a connection of its own, that sets and gets until stopped."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.done = server, threading.Event()
        self.sock = server.connect()
        self.replies = self.sock.makefile("rb")
        self.took, self.broken = [], None

    def waited_secs(self):
        """The same of all threads that an exchange needs, one after the other."""
        tasks = Path(f"/proc/{self.server.pid}/task").iterdir()
        return waited_secs(Path("/proc/thread-self")) + sum(map(waited_secs, tasks))

    def exchange(self):
        """Sets and gets once: how long that took."""
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

    def await_turns(self):
        """Until it was served a few times more, or long enough for it to have been."""
        enough, deadline = len(self.took) + TURNS_MIN, time.monotonic() + TIMEOUT_SECS
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
