"""The server serves well-behaved clients while other clients leave replies unread or values incomplete."""

import contextlib
import time

import pytest

from server import MIB, wait_until

SILENT = 34
HALVES = 3000
LARGE = b"x" * (MIB - 512)
SMALLER = b"y" * 300_000
# A connection counts as stalled after 0.2 s without progress. The tests wait longer, because the server first fills the
# socket's buffers with replies.
STALL_SECS = 0.5
# A value that stays in the connection's buffer until it is complete, and the pause between its two halves in seconds.
BUFFERED, HALVES_SECS = b"z" * 30_000, 0.02


class Client:
    """A well-behaved client that checks its replies."""

    def __init__(self, server):
        self.sock = server.connect()
        self.replies = self.sock.makefile("rb")

    def set(self, key, value):
        self.sock.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        return self.replies.readline()

    def set_in_halves(self, key, value):
        """Sets a value in two parts."""
        self.sock.sendall(b"set %s 0 0 %d\r\n" % (key, len(value)) + value[: len(value) // 2])
        time.sleep(HALVES_SECS)
        self.sock.sendall(value[len(value) // 2 :] + b"\r\n")
        return self.replies.readline()

    def get(self, key, value):
        """Gets a key. Returns whether the reply is this value."""
        self.sock.sendall(b"get %s\r\n" % key)
        head = self.replies.readline()
        assert head == b"VALUE %s 0 %d\r\n" % (key, len(value)), head
        body = self.replies.read(len(value) + 2)
        return body[:-2] == value and self.replies.readline() == b"END\r\n"

    def find(self, key, value):
        """Gets a key. Returns whether the reply has this value, or None on a miss."""
        self.sock.sendall(b"get %s\r\n" % key)
        if self.replies.readline() == b"END\r\n":
            return None
        body = self.replies.read(len(value) + 2)
        return body[:-2] == value and self.replies.readline() == b"END\r\n"

    def close(self):
        self.replies.close()
        self.sock.close()


@contextlib.contextmanager
def client(server):
    made = Client(server)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def silent(server, requests):
    """Opens a connection for each request. The connections send their requests and read nothing."""
    socks = []
    try:
        for request in requests:
            sock = server.connect()
            socks.append(sock)
            sock.sendall(request)
        # A connection counts as stalled only after this time.
        time.sleep(STALL_SECS)
        yield
    finally:
        for sock in socks:
            sock.close()


def serve_all(server, secs=2):
    """Gets and sets large values for some time. Every request must succeed."""
    deadline, rounds = time.monotonic() + secs, 0
    with client(server) as good:
        while time.monotonic() < deadline or rounds < 10:
            # Each set replaces a value. The old value's memory stays in use until no reply refers to it.
            assert good.set(b"good", SMALLER) == b"STORED\r\n", rounds
            assert good.get(b"good", SMALLER), rounds
            assert good.set(b"large%d" % rounds, LARGE) == b"STORED\r\n", rounds
            assert good.get(b"large%d" % rounds, LARGE), rounds
            assert good.set_in_halves(b"buffered", BUFFERED) == b"STORED\r\n", rounds
            rounds += 1


@pytest.mark.larder
@pytest.mark.parametrize("values", [1, SILENT], ids=["one value", "a value each"])
def test_large_values_are_served_despite_clients_that_do_not_read(start, values):
    with start() as server:
        with client(server) as good:
            for n in range(values):
                assert good.set(b"v%d" % n, LARGE) == b"STORED\r\n"
        requests = [b"get v%d\r\n" % (n % values) * 20 for n in range(SILENT)]
        with silent(server, requests):
            serve_all(server)
        assert server.stats()["response_obj_oom"] == "0"


@pytest.mark.larder
@pytest.mark.parametrize("length", [20_000, 60_000])
def test_large_values_are_stored_despite_incomplete_values(start, length):
    half = b"set half 0 0 %d\r\n" % length + b"x" * (length - 1000)
    with start("-m", "64", "-c", "4000") as server, silent(server, [half] * HALVES):
        serve_all(server)


@pytest.mark.larder
def test_large_values_are_stored_despite_incomplete_large_values(start):
    half = b"set half%d 0 0 1000000\r\n" + b"x" * 999_000
    halves = [half.replace(b"%d", b"%d" % n) for n in range(60)]
    with start("-m", "64") as server, silent(server, halves):
        serve_all(server)


ON_FLASH = 1200


@pytest.mark.larder
@pytest.mark.parametrize("length", [2000, 150_000])
def test_items_on_flash_are_served_despite_clients_that_do_not_read(start, tmp_path, length):
    """A get may have to wait for about a second until the server reclaims the buffers of stalled clients."""
    value, count = b"z" * length, ON_FLASH * (1 if length > 10_000 else 50)
    path = f"ext_path={tmp_path / 'flash'}:512m"
    with start("-m", "64", "-t", "2", "-o", path) as server:
        with client(server) as good:
            for n in range(count):
                assert good.set(b"f%d" % n, value) == b"STORED\r\n"
                # Waits for the disk, because the server may evict items that it cannot write to flash fast enough.
                if n % (count // 60) == 0:
                    wait_until(lambda: server.stats()["extstore_io_queue"] == "0", "writing all")
            assert int(server.stats()["extstore_objects_used"]) > count // 10
        step = count // SILENT
        requests = [
            b"".join(b"get f%d\r\n" % n for n in range(first, first + step))
            for first in range(0, step * SILENT, step)
        ]
        with silent(server, requests):
            serve_all(server)
            with client(server) as good:
                found = [good.find(b"f%d" % n, value) for n in range(0, count, count // 100)]
        shown = server.stats()
        # The server evicts some items because it cannot write them to flash fast enough.
        there = 100 * (1 - int(shown["evictions"]) / count)
        assert found.count(False) == 0 and found.count(True) > 0.7 * there, (found.count(True), shown)
