"""Clients that send garbage, or single bytes."""

import random
import threading

import pytest

from bystander import bounded


def test_byte_by_byte_gives_the_same_answers(start):
    dialogue = b"set slow 7 0 5\r\nhello\r\ngets slow slow\r\nincr slow 1\r\nbogus\r\nmg slow s v\r\nmn\r\n"
    with start("-t", "2") as server:

        def answers(chunk):
            with server.connect() as sock, sock.makefile("rb") as replies:
                for at in range(0, len(dialogue), chunk):
                    sock.sendall(dialogue[at : at + chunk])
                lines = []
                while not lines or lines[-1] != b"MN\r\n":
                    lines.append(replies.readline())
                    assert lines[-1], lines
                # The CAS value differs from run to run.
                return [b" ".join(line.split(b" ")[:4]) for line in lines]

        with bounded(server):
            whole = answers(len(dialogue))
            assert answers(1) == whole
            assert answers(7) == whole


def test_two_hundred_slow_senders_at_once(start):
    request = b"set slow 0 0 100\r\n" + b"x" * 100 + b"\r\n"
    with start("-t", "2") as server:
        slow = [server.connect() for _ in range(200)]
        with bounded(server):
            for at in range(len(request)):
                for sock in slow:
                    sock.sendall(request[at : at + 1])
            assert all(sock.recv(16) == b"STORED\r\n" for sock in slow)
        for sock in slow:
            sock.close()


@pytest.mark.parametrize("first", [b"", b"\x80"], ids=["text", "binary"])
def test_garbage(start, first):
    """The server may answer anything, but must continue to serve other clients."""

    def throw(seed):
        noise = random.Random(seed)
        with server.connect() as sock:
            try:
                sock.sendall(first + noise.randbytes(noise.randrange(1, 50_000)))
            except OSError:
                pass  # The server may close the connection.

    with start("-m", "64", "-t", "2") as server:
        with bounded(server):
            throwers = [threading.Thread(target=throw, args=(seed,)) for seed in range(200)]
            for thrower in throwers:
                thrower.start()
            for thrower in throwers:
                thrower.join()


def test_commands_with_broken_pieces(start):
    """Lines of valid words in random order. Parsers reject such lines late."""
    words = b"get gets set cas incr mg ms ma md 0 1 -1 99999999999999999999 noreply key v T C q S".split()
    noise = random.Random(7)
    lines = [b" ".join(noise.choices(words, k=noise.randrange(1, 12))) for _ in range(20_000)]
    with start("-m", "64", "-t", "2") as server:
        with bounded(server):
            for at in range(0, len(lines), 100):
                with server.connect() as sock:
                    sock.sendall(b"\r\n".join(lines[at : at + 100]) + b"\r\n")


def closed_silently(sock):
    """Returns whether the server closed the connection without a reply. If input is unread, the close sends a reset."""
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_connection_with_an_endless_line_is_closed(start):
    with start("-t", "2") as server:
        with server.connect() as sock, bounded(server):
            sock.sendall(b"x" * 2049)
            assert closed_silently(sock)


@pytest.mark.larder
def test_a_get_line_without_end_is_bounded(start):
    """Lines of `get`, `gets`, `gat` and `gats` have no length limit, because they may have many keys. All other lines
    have a length limit."""
    with start("-m", "64", "-t", "2") as server:
        with server.connect(timeout=2) as sock, bounded(server):
            try:
                sock.sendall(b"get ")
                for _ in range(1000):
                    sock.sendall(b"a_key_of_twenty_byte " * 5000)
            except OSError:
                pass  # The connection was closed, or the server stopped reading.
