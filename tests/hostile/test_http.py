"""Hostile HTTP clients: the server still serves other clients over HTTP and memcached's protocol, with bounded
memory."""

import contextlib
import random
import signal
import socket
import time

import h2.exceptions
import httpx
import pytest

from bystander import bounded
from http2_peer import Peer
from server import MIB, TIMEOUT_SECS, wait_until
from tiers import long

pytestmark = pytest.mark.larder

# More connections than HTTP permits.
MANY = 300
VALUE = bytes(900_000)
# HTTP/2: types of frames, the flag of the last frame of a stream, and the header field `:status: 200`.
DATA, HEADERS, RST_STREAM, PING, GOAWAY = 0, 1, 3, 6, 7
END_STREAM = 1
STATUS_200 = b"\x88"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(autouse=True)
def one_runtime(request):
    if request.config.getoption("--runtime"):
        pytest.skip("HTTP has a thread of its own, whatever the runtime of the workers")


@contextlib.contextmanager
def attacked(start, *more, options=()):
    with start("-m", "64", "-t", "2", *options, http=True) as server, bounded(server, *more):
        yield server


def peer(server):
    host, port = server.http_address.split(":")
    return socket.create_connection((host, int(port)), TIMEOUT_SECS)


def is_served(server):
    """Returns whether a new client can get and set a value."""
    url = f"http://{server.http_address}/v1/keys/mine"
    try:
        with httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
            return client.put(url, content=b"1").status_code < 300 and client.get(url).content == b"1"
    except httpx.TransportError:
        return False


def await_a_free_connection(server):
    """Waits until the server serves a new client. The server may first have to disconnect a slow client."""
    wait_until(lambda: is_served(server), "service")


@pytest.mark.parametrize("partial", [b"", b"GET /v1/keys/a HTTP/1.1\r\nHo", PREFACE], ids=["nothing", "head", "HTTP/2"])
def test_many_idle_connections(start, partial):
    with attacked(start) as server:
        silent = [peer(server) for _ in range(MANY)]
        for sock in silent:
            sock.sendall(partial)
        assert all(is_served(server) for _ in range(20)), "idle connections make room at once"
        for sock in silent:
            sock.close()


def test_many_slow_bodies(start):
    with attacked(start) as server:
        slow = [peer(server) for _ in range(MANY)]
        for n, sock in enumerate(slow):
            # The server may have closed this connection to make room for others.
            with contextlib.suppress(OSError):
                sock.sendall(b"PUT /v1/keys/slow%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n" % n)
                sock.sendall(bytes(49_999))
        await_a_free_connection(server)
        for sock in slow:
            sock.close()


def test_many_clients_that_read_nothing(start):
    """Unsent values pin a part of the cache. The server serves other clients with the rest."""
    with attacked(start, (64 + 32) * MIB) as server:
        with httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
            for n in range(20):
                assert client.put(f"http://{server.http_address}/v1/keys/large{n}", content=VALUE).status_code == 201
        readers = [peer(server) for _ in range(MANY)]
        for n, sock in enumerate(readers):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(b"GET /v1/keys/large%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % (n % 20))
        await_a_free_connection(server)
        with server.connect() as sock, sock.makefile("rb") as replies:
            for n in range(100):
                sock.sendall(b"set other%d 0 0 %d\r\n%s\r\n" % (n, len(VALUE), VALUE))
                assert replies.readline() == b"STORED\r\n"
        for sock in readers:
            sock.close()


def test_many_slow_large_uploads(start):
    """Slow uploads do not take memory from other clients of any protocol."""
    with attacked(start, (64 + 32) * MIB) as server:
        slow = [peer(server) for _ in range(100)]
        for n, sock in enumerate(slow):
            with contextlib.suppress(OSError):
                sock.sendall(b"PUT /v1/keys/slow%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" % n)
                sock.sendall(VALUE[:890_000])
        for n in range(50):
            with server.connect() as sock, sock.makefile("rb") as replies:
                sock.sendall(b"set other%d 0 0 %d\r\n%s\r\n" % (n, len(VALUE), VALUE))
                assert replies.readline() == b"STORED\r\n"
        url = f"http://{server.http_address}/v1/keys/mine"
        deadline = time.monotonic() + TIMEOUT_SECS
        with httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
            while (stored := client.put(url, content=VALUE)).status_code == 503:
                assert stored.headers["retry-after"] and time.monotonic() < deadline
                time.sleep(0.2)
            assert stored.status_code in (201, 204)
        for sock in slow:
            sock.close()


def test_many_slow_readers_of_large_values(start):
    """Clients read a little from time to time, which keeps their connections from being idle. The values exceed the
    buffers of the operating system."""
    value = bytes(12 * MIB)
    with attacked(start, (64 + 32) * MIB, options=("-I", "16m")) as server:
        url = f"http://{server.http_address}/v1/keys/large"
        with httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
            assert client.put(url, content=value).status_code == 201
            readers = [peer(server) for _ in range(30)]
            for sock in readers:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(b"GET /v1/keys/large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for sock in readers:
                assert sock.recv(1, socket.MSG_PEEK), "each has an answer, or a part of it"
            deadline, busy = time.monotonic() + TIMEOUT_SECS, False
            while (found := client.get(url)).status_code == 503:
                busy = True
                assert found.headers["retry-after"] and time.monotonic() < deadline
                for sock in readers:
                    with contextlib.suppress(OSError):
                        sock.recv(10)
                time.sleep(0.2)
            assert busy, "the test fails to keep the server busy"
            assert found.content == value
        for sock in readers:
            sock.close()


def test_many_batches_at_once(start):
    """Peers send parts of 8 MiB bodies, and do not read 8 MiB replies."""
    ask = b'{"operations": [' + b",".join([b'{"op": "get", "key": "large"}'] * 8) + b"]}"
    head = b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with attacked(start) as server:
        with httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
            large = f"http://{server.http_address}/v1/keys/large"
            assert client.put(large, content=VALUE).status_code == 201
        peers = [peer(server) for _ in range(100)]
        for n, sock in enumerate(peers):
            sock.settimeout(5)
            with contextlib.suppress(OSError):
                if n % 2:
                    sock.sendall(head % len(ask) + ask)
                else:
                    sock.sendall(head % (8 * MIB) + bytes(4 * MIB))
        await_a_free_connection(server)
        for sock in peers:
            sock.close()


def test_noise(start):
    """Requests with changed, missing and repeated bytes, and random bytes."""
    noise = random.Random(5)
    whole = b"PUT /v1/keys/%61?ttl=5 HTTP/1.1\r\nHost: localhost\r\nIf-Match: *\r\nContent-Length: 3\r\n\r\nabc" * 3
    frames = PREFACE + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\5\1\5\0\0\0\1\x82\x86\x84\x41\x80" * 3
    with attacked(start) as server:
        for turn in range(1500):
            sent = bytearray((whole, frames, PREFACE + noise.randbytes(200), noise.randbytes(2000))[turn % 4])
            for _ in range(noise.randrange(4)):
                sent[noise.randrange(len(sent))] = noise.randrange(256)
            with peer(server) as sock, contextlib.suppress(OSError):
                sock.sendall(sent[: noise.randrange(len(sent)) if turn % 3 else len(sent)])
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
        assert is_served(server)


@pytest.mark.parametrize("head", [b"A: " + b"a" * 100_000, b"\r\n".join(b"A%d: b" % n for n in range(10_000))])
def test_a_large_head(start, head):
    with attacked(start) as server:
        with peer(server) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /v1/keys/a HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            with contextlib.suppress(OSError):
                assert sock.recv(100).startswith(b"HTTP/1.1 431")
        assert is_served(server)


@pytest.mark.parametrize("target", [b"/v1/keys/a", b"http://localhost/v1/keys/a"], ids=["path", "URI"])
@pytest.mark.parametrize("head", [b"", b"Host: localhost\r\nHost: localhost\r\n"], ids=["none", "two"])
def test_a_request_without_one_host(start, head, target):
    """RFC 9112, 3.2: the reply is 400, and the connection can be used for the next request."""
    with start(http=True) as server, peer(server) as sock:
        sock.sendall(b"GET " + target + b" HTTP/1.1\r\n" + head + b"\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        sock.sendall(b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert answer.count(b"HTTP/1.1 200 ") == 1, answer


@pytest.mark.parametrize("window", [long(0), 1])
@pytest.mark.parametrize("path", ["/v1/keys/small", "/v1/keys?limit=1000", "/v1/stats/conns", "/metrics", "/openapi.json"])
def test_answers_that_wait_in_the_connection(start, path, window):
    """HTTP/2 peers grant flow-control windows of zero bytes or one byte for many simultaneous replies."""
    with attacked(start) as server:
        with httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
            keys = f"http://{server.http_address}/v1/keys/"
            assert client.put(keys + "small", content=VALUE[:45_000]).status_code == 201
            sets = [{"op": "set", "key": "\1" * 1000 + str(n), "value": "1"} for n in range(1000)]
            for at in range(0, 1000, 100):
                answer = client.post(f"http://{server.http_address}/v1/batch", json={"operations": sets[at : at + 100]})
                assert answer.status_code == 200
        peers = []
        for _ in range(60):
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                peer = Peer(server.http_address, stream_window=window)
                peers.append(peer)
                for _ in range(30):
                    peer.get(path)
        await_a_free_connection(server)
        for peer in peers:
            peer.close()


def test_batches_of_many_parts(start):
    many = b'{"operations": [' + b",".join([b'{"op":"get","key":"a"}'] * 80_000) + b"]}"
    tagged = b'{"operations": [{"op":"set","key":"a","value":"1","tags":[' + b",".join([b'""'] * 600_000) + b"]}]}"
    with attacked(start) as server, httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
        for _ in range(5):
            for body, status in ((many, 413), (tagged, 400)):
                answer = client.post(f"http://{server.http_address}/v1/batch", content=body)
                assert answer.status_code == status, answer.text
        await_a_free_connection(server)


def test_batches_that_arrive_slowly_are_given_up(start):
    """The clients send single bytes. The server counts this as too little progress, and gives their memory to other
    connections."""
    head = b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n"
    with attacked(start) as server:
        peers = [peer(server) for _ in range(10)]
        for sock in peers:
            # The server closes idle connections when it needs their memory.
            with contextlib.suppress(OSError):
                sock.sendall(head + bytes(1_900_000))
        start_time = time.monotonic()
        while time.monotonic() - start_time < 7:
            for sock in peers:
                with contextlib.suppress(OSError):
                    sock.sendall(b"1")
            time.sleep(0.5)
        with httpx.Client(timeout=TIMEOUT_SECS, trust_env=False) as client:
            body = b'{"operations": [{"op":"set","key":"a","value":"%s"}]}' % (b"v" * 900_000)
            assert client.post(f"http://{server.http_address}/v1/batch", content=body).status_code == 200
        for sock in peers:
            sock.close()


def put_head(name, length, *headers):
    head = [f"PUT /v1/keys/{name} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return "\r\n".join([*head, "", ""]).encode()


def answer_of(reader):
    """Returns the next reply without its body: the status and the headers in lower case."""
    status, headers = reader.readline().decode(), {}
    for line in iter(reader.readline, b"\r\n"):
        name, _, content = line.decode().lower().partition(":")
        headers[name] = content.strip()
    reader.read(int(headers.get("content-length", 0)))
    return status.split()[1] if status else None, headers


def test_a_refused_request_keeps_its_connection(start):
    """The body arrives after the server has rejected the request."""
    with start(http=True) as server, peer(server) as sock, sock.makefile("rb") as reader:
        sock.sendall(put_head("a?tags=,", 1))
        sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            # If the server replies before the body arrives, its reply must announce the close of the connection.
            assert sock.recv(1, socket.MSG_PEEK)
            assert answer_of(reader)[1]["connection"] == "close"
            return
        sock.settimeout(TIMEOUT_SECS)
        sock.sendall(b"1" + put_head("b", 1) + b"2")
        assert [answer_of(reader)[0], answer_of(reader)[0]] == ["400", "201"]


def test_a_body_that_was_asked_for_is_received_even_if_it_is_refused(start):
    """After `100 Continue`, the server receives a body of unknown length, and rejects the body only when its length
    exceeds the limit."""
    with start(http=True) as server, peer(server) as sock, sock.makefile("rb") as reader:
        head = ["PUT /v1/keys/a HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "Expect: 100-continue", "", ""]
        sock.sendall("\r\n".join(head).encode())
        assert answer_of(reader)[0] == "100"
        for _ in range(100):
            sock.sendall(b"%x\r\n%s\r\n" % (100_000, b"x" * 100_000))
        sock.sendall(b"0\r\n\r\n")
        assert answer_of(reader)[0] == "411"


@pytest.mark.parametrize("headers", [(), ("Expect: 100-continue",)], ids=["large", "announced"])
def test_a_refusal_announces_that_the_connection_closes(start, headers):
    with start(http=True) as server, peer(server) as sock, sock.makefile("rb") as reader:
        sock.sendall(put_head("a?tags=,", 1 if headers else 500_000, *headers))
        status, found = answer_of(reader)
        assert (status, found.get("connection")) == ("400", "close")


def frames(sock):
    """Yields the type, flags and content of each frame until the end of the connection. Answers PING frames."""
    with sock.makefile("rb") as reader:
        while head := reader.read(9):
            content = reader.read(int.from_bytes(head[:3], "big"))
            if head[3] == PING and not head[4]:
                sock.sendall(head[:4] + b"\x01" + head[5:] + content)
            yield head[3], head[4], content


@pytest.mark.parametrize("is_paused", [False, True])
def test_no_request_of_many_is_cut_off(start, is_paused):
    """The requests have to wait for memory. On a slow machine, the server may reject requests that wait for too long.
    If the test pauses the server, the server receives all requests at the same time."""
    with start("-m", "64", "-t", "2", http=True) as server:
        with server.connect() as sock:
            sock.sendall(b"set a 0 0 2\r\nhi\r\n")
            assert sock.recv(100) == b"STORED\r\n"
        peers = []
        if is_paused:
            server.process.send_signal(signal.SIGSTOP)
        for _ in range(100):
            peers.append(Peer(server.http_address))
            for _ in range(30):
                peers[-1].get("/v1/keys/a")
        server.process.send_signal(signal.SIGCONT)
        found = 0
        for each in peers:
            ended = 0
            for kind, flags, content in frames(each.sock):
                assert kind != RST_STREAM
                ended += kind in (DATA, HEADERS) and flags & END_STREAM
                found += kind == HEADERS and content[:1] == STATUS_200
                if ended == 30:
                    break
            assert ended == 30, "the connection ended before its requests were answered"
            each.sock.close()
        assert found


def last_accepted_of_replaced(server):
    """Opens a connection that another connection replaces. Returns the last stream that the server has accepted on the
    replaced connection, according to the GOAWAY frames."""
    first = Peer(server.http_address)
    first.get("/v1/keys/a")
    while not first.ended:
        assert first.receive()
    second = Peer(server.http_address)
    second.get("/v1/keys/a")
    with first.sock:
        last = [int.from_bytes(content[:4], "big") for kind, _, content in frames(first.sock) if kind == GOAWAY]
    while not second.ended:
        assert second.receive()
    assert second.http_statuses == {1: 404}
    second.sock.close()
    return last[-1]


def test_a_replaced_connection_learns_which_requests_were_accepted(start):
    with start("--gateway-conns", "1", http=True) as server:
        # The peer has a second to answer the server's PING. A busy machine may exceed this limit, so the test retries.
        wait_until(lambda: last_accepted_of_replaced(server) == 1, "a GOAWAY that names the only stream")
