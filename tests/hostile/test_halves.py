"""Connections that stall in the middle of a request."""

import pytest

from bystander import ask, bounded
from server import MIB

CONNECTIONS = 1000
# Incomplete values may already be in the cache, so the test checks the memory of the entire process.
LIMIT_MIB, ALLOWANCE_MIB = 64, 32
HALVES = {
    "half a line": b"get some_key_that_is_cut_o",
    "a line just short of the limit": b"get-nothing " + b"k" * 2000,
    "half a small value": b"set half 0 0 1000\r\n" + b"x" * 500,
    "half a larger value": b"set half 0 0 60000\r\n" + b"x" * 30_000,
    "a meta value without its end": b"ms half 100 T0\r\n" + b"x" * 100,
    "half a binary header": b"\x80\x01\x00\x04\x08",
    "half a binary value": b"\x80\x01\x00\x04\x08\x00\x00\x00\x00\x00\x04\x0c" + bytes(12) + b"x" * 300,
}


@pytest.mark.larder
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
def test_a_thousand_connections_stall(start, half):
    with start("-m", str(LIMIT_MIB), "-t", "2", "-c", "2000") as server:
        stalled = []
        try:
            with bounded(server, (LIMIT_MIB + ALLOWANCE_MIB) * MIB - server.rss()):
                for _ in range(CONNECTIONS):
                    sock = server.connect()
                    stalled.append(sock)
                    sock.sendall(half)
            assert int(server.stats()["curr_connections"]) >= CONNECTIONS / 2
        finally:
            for sock in stalled:
                sock.close()
        assert ask(server, b"set after 0 0 1\r\n1\r\n") == b"STORED\r\n"


@pytest.mark.parametrize("announcing", [1, 3])
def test_a_gibibyte_announced_and_never_sent(start, announcing):
    length = (1 << 30) - 4096
    with start("-m", "4096", "-I", "1024m", "-t", "2") as server:
        liars = [server.connect() for _ in range(announcing)]
        with bounded(server):
            for n, sock in enumerate(liars):
                sock.sendall(b"set big%d 0 0 %d\r\n" % (n, length))
        for sock in liars:
            sock.close()
        megabytes = b"x" * (10 << 20)
        stored = ask(server, b"set after 0 0 %d\r\n%s\r\n" % (len(megabytes), megabytes))
        assert stored == b"STORED\r\n"
        assert ask(server, b"get big0\r\n") == b"END\r\n"


def test_a_gibibyte_announced_in_binary(start):
    with start("-m", "4096", "-I", "1024m", "-t", "2") as server:
        with server.connect() as liar, bounded(server):
            body = (1 << 30) - 4096
            header = b"\x80\x01\x00\x03\x08\x00\x00\x00" + body.to_bytes(4, "big") + bytes(12)
            liar.sendall(header + bytes(8) + b"big")


def test_values_far_over_the_limit_are_discarded(start):
    """A server with 64 MiB and an item limit of 1 MiB reads, discards and rejects a value of 200 MB."""
    length = 200_000_000
    with start("-m", "64", "-t", "2") as server:
        with server.connect(timeout=60) as sock, sock.makefile("rb") as replies, bounded(server):
            sock.sendall(b"set big 0 0 %d\r\n" % length)
            for _ in range(length // 1_000_000):
                sock.sendall(b"x" * 1_000_000)
            sock.sendall(b"\r\nmn\r\n")
            assert replies.readline() == b"SERVER_ERROR object too large for cache\r\n"
            assert replies.readline() == b"MN\r\n"
