"""Clients that send requests and never read replies."""

import contextlib
import socket

import pytest
import redis

from bystander import ask, bounded

VALUE_LEN = 100_000
REQUESTS = 20_000


def flood(sock, request, times):
    """Sends `request` up to `times` times, but stops when the server stops reading. Returns the number of sent
    bytes."""
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
    """The replies to 20,000 requests for 100 KB each would take 2 GB."""
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


@pytest.mark.larder
@pytest.mark.parametrize("count, length", [(20, 500_000), (8000, 1000)])
def test_a_pipeline_is_sent_before_a_reply_is_read(start, count, length):
    """redis-server buffers replies without a limit, and its clients rely on this."""
    with start(resp=True) as server, redis.Redis(port=server.resp_port, socket_timeout=60) as client:
        client.set("big", b"x" * length)
        pipeline = client.pipeline(transaction=False)
        for _ in range(count):
            pipeline.get("big").set("w", b"y" * length)
        replies = pipeline.execute()
        assert replies[1::2] == [True] * count
        assert all(reply == b"x" * length for reply in replies[::2])
        # Sends the pipeline again, from a client that shuts down its sending direction before it reads.
        get = b"get big\r\nset w 0 0 %d\r\n%s\r\n" % (length, b"y" * length)
        with server.connect(timeout=60) as late:
            late.sendall(get * count)
            late.shutdown(socket.SHUT_WR)
            received = 0
            while block := late.recv(1 << 20):
                received += len(block)
        hit = b"VALUE big 0 %d\r\n%s\r\nEND\r\nSTORED\r\n" % (length, b"x" * length)
        assert received == len(hit) * count


@pytest.mark.larder
def test_a_pipeline_goes_on_when_others_free_memory(start):
    """Other clients occupy all memory that is available for waiting requests, so the server stops reading until these
    clients disconnect."""
    pair = b"get big\r\nset w 0 0 1000\r\n%s\r\n" % (b"y" * 1000)
    with start("-m", "64", "-t", "2") as server:
        assert ask(server, b"set big 0 0 %d\r\n%s\r\n" % (VALUE_LEN, b"x" * VALUE_LEN)) == b"STORED\r\n"
        others = [server.connect() for _ in range(3)]
        for sock in others:
            flood(sock, pair, REQUESTS)
        late = server.connect()
        sent = flood(late, pair, 5000)
        for sock in others:
            sock.close()
        late.settimeout(60)
        late.sendall((pair * 5000)[sent:])
        late.shutdown(socket.SHUT_WR)
        received = 0
        while block := late.recv(1 << 20):
            received += len(block)
        hit = b"VALUE big 0 %d\r\n%s\r\nEND\r\nSTORED\r\n" % (VALUE_LEN, b"x" * VALUE_LEN)
        assert received == len(hit) * 5000


@pytest.mark.larder
def test_pipelines_that_are_never_read_share_a_bound(start):
    """Twelve clients send 20 MB each. Their input takes at most half of the memory for connections, and the server
    still serves other clients."""
    pair = b"get big\r\nset w 0 0 1000\r\n%s\r\n" % (b"y" * 1000)
    with start("-m", "64", "-t", "2") as server:
        assert ask(server, b"set big 0 0 %d\r\n%s\r\n" % (VALUE_LEN, b"x" * VALUE_LEN)) == b"STORED\r\n"
        silent = [server.connect() for _ in range(12)]
        with bounded(server):
            for sock in silent:
                # The server may disconnect a client that has not read for a long time.
                with contextlib.suppress(ConnectionError):
                    flood(sock, pair, REQUESTS)
            with server.connect(timeout=60) as other:
                for number in range(100):
                    other.sendall(b"set k 0 0 60000\r\n" + b"z" * 60_000 + b"\r\nget k\r\n")
                    expected = b"STORED\r\nVALUE k 0 60000\r\n" + b"z" * 60_000 + b"\r\nEND\r\n"
                    received = b""
                    while len(received) < len(expected):
                        received += other.recv(1 << 16)
                    assert received == expected
        for sock in silent:
            sock.close()
