"""Hostile gRPC clients: the server still serves other clients over gRPC and memcached's protocol, with bounded
memory."""

import collections
import contextlib
import random
import socket
import time

import grpc
import h2.exceptions
import pytest

from bystander import bounded
from grpc_client import Cache
from http2_peer import Peer
from server import MIB, TIMEOUT_SECS, wait_until
from tiers import long

pytestmark = pytest.mark.larder

# More connections than HTTP and gRPC permit.
MANY = 300
STREAMS = 30
# How long a peer waits for the server to extend a flow-control window, in seconds.
GRANT_SECS = 0.5
VALUE = bytes(900_000)
METHODS = [
    "Get", "GetMany", "Read", "Set", "Write", "Delete", "Increment", "Touch", "DropTag", "Flush", "Watch", "Stats",
]  # fmt: skip
# The status codes of errors in docs/grpc.md.
DOCUMENTED = {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE",
              "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"}  # fmt: skip

@pytest.fixture(autouse=True)
def one_runtime(request):
    if request.config.getoption("--runtime"):
        pytest.skip("gRPC has a thread of its own, whatever the runtime of the workers")


@contextlib.contextmanager
def attacked(start, *more, options=()):
    with start("-m", "64", "-t", "2", *options, grpc=True) as server, bounded(server, *more):
        yield server


def is_served(server):
    """Returns whether a new client can get and set a value."""
    try:
        with Cache(server.grpc_address) as cache:
            return cache.outcome(cache.Set(key=b"mine", value=b"1")) == "DONE" and cache.Get(key=b"mine").value == b"1"
    except grpc.RpcError:
        return False


def await_a_free_connection(server):
    """Waits until the server serves a new client. The server may first have to disconnect a slow client."""
    wait_until(lambda: is_served(server), "service")


def message(data, length=None, compressed=0):
    return bytes([compressed]) + (len(data) if length is None else length).to_bytes(4) + data


def malformed(noise, sound):
    """Returns a malformed gRPC frame."""
    data = bytearray(noise.choice(sound))
    for _ in range(noise.randrange(1, 4)):
        if data:
            data[noise.randrange(len(data))] = noise.randrange(256)
    match noise.randrange(8):
        case 0:
            return noise.randbytes(noise.randrange(100))
        case 1:
            return message(noise.randbytes(noise.randrange(2000)))
        case 2:
            return message(data, compressed=noise.choice([1, 2, 255]))
        case 3:
            return message(data, length=noise.choice([0, 1, len(data) + 1, 5 * MIB, 2**31, 2**32 - 1]))
        case 4:
            return message(data)[: noise.randrange(len(data) + 5)]
        case 5:
            return message(data) * noise.randrange(2, 5)
        case 6:
            return message(b"\x0a\x00" * noise.choice([9_999, 10_001, 15_000]))
        case _:
            return message(data)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [2000, long(10_000)])
def test_malformed_frames(start, count):
    """Each malformed frame gets a reply with a documented status."""
    noise = random.Random(11)
    with attacked(start) as server:
        with Cache(server.grpc_address) as cache:
            item = {"key": b"k", "value": b"v" * 20, "tags": [b"t"], "ttl": {"seconds": 5}}
            request, head = cache.message("WriteRequest"), cache.message("WriteHead")
            sound = [
                cache.message("GetManyRequest")(keys=[b"a", b"b"]),
                cache.message("SetRequest")(**item),
                request(head=head(item=cache.message("SetRequest")(key=b"k"), length=3)),
                cache.message("IncrementRequest")(key=b"n", by=-3, initial=7, ttl={"seconds": 5}),
                cache.message("WatchRequest")(kinds=[1], prefix=b"k", one_in=5),
            ]
            sound = [one.SerializeToString() for one in sound]
        statuses, sent = collections.Counter(), 0
        while sent < count:
            peer = Peer(server.grpc_address)
            for n in range(STREAMS):
                method = METHODS[(sent + n) % len(METHODS)]
                # Watches end only by this deadline of 50 ms.
                peer.send(peer.begin(method, ("grpc-timeout", "50m")), malformed(noise, sound))
            deadline = time.monotonic() + TIMEOUT_SECS
            while len(peer.statuses) < STREAMS and peer.receive():
                assert time.monotonic() < deadline, peer.statuses
            assert len(peer.statuses) == STREAMS, "each request is answered"
            statuses.update(peer.statuses.values())
            sent += STREAMS
            peer.close()
        assert set(statuses) - {"OK"} <= DOCUMENTED, statuses
        assert statuses["INVALID_ARGUMENT"] > count / 10 and statuses["OK"] > count / 100, statuses
        assert is_served(server)


def test_malformed_frames_of_http(start):
    """HTTP/2 frames with changed, missing and repeated bytes, and random bytes."""
    noise = random.Random(5)
    with attacked(start) as server:
        for turn in range(1000):
            peer = Peer(server.grpc_address)
            peer.begin("Get")
            stream = peer.begin("Set")
            peer.h2.send_data(stream, message(b"\x0a\x01k"), end_stream=True)
            sent = bytearray(peer.h2.data_to_send())
            for _ in range(noise.randrange(4)):
                sent[noise.randrange(len(sent))] = noise.randrange(256)
            if turn % 4 == 0:
                sent = noise.randbytes(500)
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                peer.sock.sendall(sent[: noise.randrange(len(sent)) if turn % 3 else len(sent)])
                peer.sock.shutdown(socket.SHUT_WR)
                while peer.sock.recv(65536):
                    pass
            peer.close()
        assert is_served(server)


def test_many_idle_connections(start):
    with attacked(start) as server:
        silent = [Peer(server.grpc_address) for _ in range(MANY)]
        assert all(is_served(server) for _ in range(20)), "idle connections make room at once"
        for peer in silent:
            peer.close()


def test_many_slow_senders(start):
    """Each client sends as much of 30 messages of 900 KB as its windows allow."""
    with attacked(start) as server:
        slow = []
        for n in range(100):
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                peer = Peer(server.grpc_address)
                slow.append(peer)
                peer.receive()
                for stream in [peer.begin("Set") for _ in range(STREAMS)]:
                    peer.send(stream, message(VALUE), end=False)
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            for peer in slow:
                with contextlib.suppress(OSError, h2.exceptions.H2Error):
                    peer.sock.settimeout(0.001)
                    peer.receive()
                    for stream in range(1, 2 * STREAMS, 2):
                        peer.send(stream, VALUE[:30_000], end=False)
        await_a_free_connection(server)
        for peer in slow:
            peer.close()


def test_many_clients_that_read_nothing(start):
    """Unsent replies pin memory of the cache. The server still serves other clients."""
    with attacked(start, (64 + 32) * MIB) as server:
        with Cache(server.grpc_address) as cache:
            for n in range(20):
                assert cache.outcome(cache.Set(key=b"large%d" % n, value=VALUE)) == "DONE"
        peers = []
        for n in range(MANY):
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                peer = Peer(server.grpc_address)
                peers.append(peer)
                for at in range(5):
                    keys = b"".join(b"\x0a\x06large%d" % (n % 10) for _ in range(20))
                    method, data = [("Read", b"\x0a\x06large%d" % (n % 10)), ("GetMany", keys), ("Get", keys[:8])][at % 3]
                    peer.send(peer.begin(method), message(data))
        await_a_free_connection(server)
        with server.connect() as sock, sock.makefile("rb") as replies:
            for n in range(100):
                sock.sendall(b"set other%d 0 0 %d\r\n%s\r\n" % (n, len(VALUE), VALUE))
                assert replies.readline() == b"STORED\r\n"
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("method", ["GetMany", "Read"])
def test_many_clients_that_read_no_batches(start, method):
    """The server looks up and copies some values before the client has read the previous values. These copies must not
    take too much memory."""
    with attacked(start) as server:
        with Cache(server.grpc_address) as cache:
            for n in range(32):
                assert cache.outcome(cache.Set(key=b"key%02d" % n, value=VALUE[:15_000])) == "DONE"
        keys = b"".join(b"\x0a\x05key%02d" % n for n in range(32)) * 4
        keys = message(keys if method == "GetMany" else keys[:7])
        peers = []
        for _ in range(50):
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                peer = Peer(server.grpc_address)
                peers.append(peer)
                for _ in range(STREAMS):
                    peer.send(peer.begin(method), keys)
        await_a_free_connection(server)
        for peer in peers:
            peer.close()


def test_many_slow_uploads(start):
    """Slow uploads do not take memory from other clients of any protocol."""
    head = b"\x0a\x0d\x0a\x08\x0a\x06slow%02d\x10\xa0\xf7\x36"
    with attacked(start, (64 + 32) * MIB) as server:
        slow = []
        for n in range(100):
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                peer = Peer(server.grpc_address)
                slow.append(peer)
                stream = peer.begin("Write")
                peer.send(stream, message(head % n) + message(b"\x12\xe0\xd4\x03" + bytes(60_000)), end=False)
        for n in range(50):
            with server.connect() as sock, sock.makefile("rb") as replies:
                sock.sendall(b"set other%d 0 0 %d\r\n%s\r\n" % (n, len(VALUE), VALUE))
                assert replies.readline() == b"STORED\r\n"
        deadline = time.monotonic() + TIMEOUT_SECS
        with Cache(server.grpc_address) as cache:
            while True:
                try:
                    assert cache.outcome(cache.write([VALUE], key=b"mine")) == "DONE"
                    break
                except grpc.RpcError as error:
                    assert error.code().name == "UNAVAILABLE" and time.monotonic() < deadline, error
                    time.sleep(0.2)
        for peer in slow:
            peer.close()


def test_watchers_that_read_nothing(start):
    """The server limits the memory for events, and does not wait for watchers."""
    with attacked(start) as server:
        watchers = [Peer(server.grpc_address) for _ in range(20)]
        for peer in watchers:
            peer.send(peer.begin("Watch"), message(b""))
        with server.connect() as sock, sock.makefile("rb") as replies:
            for n in range(300):
                sock.sendall(b"".join(b"mg %s%d v\r\n" % (b"k" * 200, m) for m in range(300)) + b"mn\r\n")
                while replies.readline() != b"MN\r\n":
                    pass
        assert is_served(server)
        for peer in watchers:
            peer.close()


@pytest.mark.parametrize("window", [0, 1])
def test_answers_that_wait_in_the_connection(start, window):
    """A peer grants a flow-control window of zero bytes or one byte, so the complete reply waits in the connection
    after its handler has returned."""
    with attacked(start) as server:
        with Cache(server.grpc_address) as cache:
            for n in range(8):
                assert cache.outcome(cache.Set(key=b"large%d" % n, value=VALUE)) == "DONE"
            assert cache.outcome(cache.Set(key=b"small", value=VALUE[:45_000])) == "DONE"
        tiny = b"".join(b"\x0a\x01%c" % (97 + n % 26) for n in range(5000))
        asks = [("Get", b"\x0a\x06large1"), ("Get", b"\x0a\x05small"), ("Stats", b"\x0a\x05conns"),
                ("GetMany", tiny), ("Read", b"\x0a\x06large2")]  # fmt: skip
        peers = []
        for n in range(60):
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                peer = Peer(server.grpc_address, stream_window=window)
                peers.append(peer)
                for _ in range(STREAMS):
                    method, data = asks[n % len(asks)]
                    peer.send(peer.begin(method), message(data))
        await_a_free_connection(server)
        for peer in peers:
            peer.close()


def test_long_messages_to_the_standard_services(server_of_services):
    long = bytes(3 * MIB).replace(b"\0", b"a")
    name = b"\x0a" + varint(len(long)) + long
    for method in ("grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"):
        answers = server_of_services.unary_stream(f"/{method}")(name)
        with pytest.raises(grpc.RpcError) as refused:
            list(answers)
        assert refused.value.code() == grpc.StatusCode.OUT_OF_RANGE
    host = b"\x1a" + varint(len(long)) + long
    answers = server_of_services.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(iter([host]))
    assert list(answers) == [], "it ends without an echo"
    for watch in (b"\x12" + varint(2000) + long[:2000], b"\x0a" + varint(65) + b"\1" * 65):
        answers = server_of_services.unary_stream("/larder.v1.Cache/Watch")(watch)
        with pytest.raises(grpc.RpcError) as refused:
            list(answers)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def server_of_services(start):
    with attacked(start) as server, grpc.insecure_channel(server.grpc_address) as channel:
        yield channel


def varint(number):
    digits = []
    while number > 127:
        digits.append(128 + number % 128)
        number //= 128
    return bytes([*digits, number])


def test_others_keep_half_of_the_memory_for_connections(start):
    """Memory that gRPC peers hold does not make the server disconnect memcached clients with incomplete values."""
    with attacked(start) as server:
        half = message(bytes(4 * MIB - 100))[: 3 * MIB]
        peers = [Peer(server.grpc_address) for _ in range(20)]
        for peer in peers:
            with contextlib.suppress(OSError, h2.exceptions.H2Error):
                # Limits the wait, because the server may never extend the window.
                peer.sock.settimeout(GRANT_SECS)
                stream, at = peer.begin("Set"), 0
                while at < len(half) and (room := peer.h2.local_flow_control_window(stream)):
                    peer.send(stream, half[at : at + room], end=False)
                    at += room
                    peer.receive()
        socks = [server.connect() for _ in range(60)]
        for sock in socks:
            sock.sendall(b"set half 0 0 40000\r\n" + bytes(20_000))
        time.sleep(1)
        for sock in socks:
            sock.sendall(bytes(20_000) + b"\r\n")
            assert sock.recv(100) == b"STORED\r\n"
            sock.close()
        await_a_free_connection(server)
        for peer in peers:
            peer.close()
