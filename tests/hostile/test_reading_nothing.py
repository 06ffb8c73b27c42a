"""Clients that send requests and never read answers."""

import socket

import pytest

from bystander import ask, bounded

VALUE_LEN = 100_000
REQUESTS = 20_000


def flood(sock, request, times):
    """Sends until the server stops reading; returns the number of bytes that were sent."""
    sock.settimeout(1.0)
    block, sent = request * 100, 0
    try:
        for _ in range(times // 100):
            sent += sock.send(block)
    except TimeoutError:
        pass
    return sent


@pytest.mark.parametrize("request_line", [b"get big\r\n", b"mg big v\r\n"])
def test_unread_replies_are_bounded(start, request_line):
    """The answers to 20,000 requests for 100 KB each would take 2 GB."""
    with start("-m", "64", "-t", "2") as server:
        assert ask(server, b"set big 0 0 %d\r\n%s\r\n" % (VALUE_LEN, b"x" * VALUE_LEN)) == b"STORED\r\n"
        silent = server.connect()
        with bounded(server):
            flood(silent, request_line, REQUESTS)
        silent.close()


def test_a_hundred_clients_that_do_not_read_share_the_bound(start):
    with start("-m", "64", "-t", "2") as server:
        assert ask(server, b"set big 0 0 %d\r\n%s\r\n" % (VALUE_LEN, b"x" * VALUE_LEN)) == b"STORED\r\n"
        silent = [server.connect() for _ in range(100)]
        with bounded(server):
            for sock in silent:
                sock.sendall(b"get big\r\n" * 1000)
        for sock in silent:
            sock.close()


def test_one_get_of_a_thousand_large_values(start):
    """A single request with a reply of 100 MB."""
    with start("-m", "64", "-t", "2") as server:
        assert ask(server, b"set big 0 0 %d\r\n%s\r\n" % (VALUE_LEN, b"x" * VALUE_LEN)) == b"STORED\r\n"
        silent = server.connect()
        with bounded(server):
            silent.sendall(b"get" + b" big" * 1000 + b"\r\n")
        silent.close()


def test_a_client_that_reads_late_gets_all_replies(start):
    with start("-m", "64", "-t", "2") as server:
        assert ask(server, b"set big 0 0 %d\r\n%s\r\n" % (VALUE_LEN, b"x" * VALUE_LEN)) == b"STORED\r\n"
        with server.connect(timeout=30) as late:
            late.sendall(b"get big\r\n" * 500 + b"mn\r\n")
            late.shutdown(socket.SHUT_WR)
            one = len(b"VALUE big 0 %d\r\n" % VALUE_LEN) + VALUE_LEN + len(b"\r\nEND\r\n")
            received, end = 0, b""
            while block := late.recv(1 << 16):
                received, end = received + len(block), (end + block)[-4:]
        assert received == 500 * one + len(b"MN\r\n")
        assert end == b"MN\r\n"
