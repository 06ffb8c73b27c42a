"""Leadership transfers, migrations and planned shutdowns fail no request. Clients of all protocols at all nodes store
values of 1 byte to 1 MiB, and increment counters in pipelines."""

import contextlib
import socket
import struct
import threading
import time

import pytest
import redis

from group import PAUSE_SECS, Group, client, http_of
from grpc_client import Cache
from server import TIMEOUT_SECS, wait_until
from test_many_groups import cluster, larder, owned

pytestmark = pytest.mark.larder

SIZES = [1, 100, 70_000, 150_000, 20_000, 200_000, 1 << 20, 3000]
# Larger messages would exceed the limits of gRPC.
SIZES_GRPC = [1, 100, 70_000, 150_000, 20_000, 200_000]
DEPTH = 32
ANSWER_SECS = 30


def value_of(name, number, size):
    start = f"{name}-{number}:".encode()
    return (start + bytes(65 + (number + at) % 26 for at in range(97)) * (size // 97 + 1))[:size]


class Failure(Exception):
    """A reply that differs from the expected one."""


class Worker(threading.Thread):
    """A client that repeatedly stores a value and checks it."""

    sizes = SIZES

    def __init__(self, node, name):
        super().__init__(daemon=True)
        self.node, self.client = node, f"{name}-{node.name}"
        self.end, self.rounds, self.failures, self.stored = threading.Event(), 0, [], {}

    def run(self):
        while not self.end.is_set():
            time.sleep(PAUSE_SECS)
            size = self.sizes[self.rounds % len(self.sizes)]
            key, value = f"{self.client}-{self.rounds % 5}", value_of(self.client, self.rounds, size)
            start_time = time.monotonic()
            try:
                self.round(key, value)
                self.stored[key] = value
            except Exception as failure:  # noqa: BLE001
                self.stored.pop(key, None)
                text = f"{type(failure).__name__}: {failure}"[:300]
                self.failures.append(f"{self.client} {size} B, {time.monotonic() - start_time:.2f} s: {text}")
                self.reconnect()
            self.rounds += 1
        self.close()

    def reconnect(self):
        self.close()

    def close(self):
        pass


def expect(found, expected, action):
    if found != expected:
        raise Failure(f"{action}: {found[:200]!r}")


class Raw(Worker):
    """A client of memcached's protocols."""

    sock = None

    def send(self, *pieces):
        if self.sock is None:
            self.sock = socket.create_connection((self.node.host, self.node.port), ANSWER_SECS)
        for number, piece in enumerate(pieces):
            # The node forwards the first pieces before it has received the last piece.
            time.sleep(0.002 if number else 0)
            self.sock.sendall(piece)

    def read(self, size, end=b"ERROR no leader\r\n"):
        received = bytearray()
        while len(received) < size and not received.endswith(end):
            try:
                piece = self.sock.recv(1 << 18)
            except TimeoutError:
                raise Failure(f"no reply after {len(received)} of {size} B: {bytes(received[-100:])!r}") from None
            if not piece:
                raise Failure(f"closed after {bytes(received[-100:])!r}")
            received += piece
        return bytes(received)

    def close(self):
        if self.sock:
            self.sock.close()
        self.sock = None


class Text(Raw):
    """Stores values whose pieces arrive slowly, looks up several keys per line, and increments a counter in
    pipelines."""

    counted = 0

    def round(self, key, value):
        request = b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value)
        third = len(request) // 3
        self.send(request[:third], request[third : 2 * third], request[2 * third :])
        expect(self.read(8), b"STORED\r\n", "set")
        known = {**self.stored, key: value}
        self.send(b"get %s\r\n" % b" ".join(key.encode() for key in known))
        found = b"".join(b"VALUE %s 0 %d\r\n%s\r\n" % (key.encode(), len(one), one) for key, one in known.items())
        expect(self.read(len(found) + 5, (b"END\r\n", b"ERROR no leader\r\n")), found + b"END\r\n", f"get {list(known)}")
        counter = self.client.encode()
        if self.counted == 0:
            self.send(b"set %s 0 0 1\r\n0\r\n" % counter)
            expect(self.read(8), b"STORED\r\n", "set")
        self.send(b"incr %s 1\r\n" % counter * DEPTH)
        # The numbers would reveal a change that was executed twice.
        numbers = b"".join(b"%d\r\n" % number for number in range(self.counted + 1, self.counted + DEPTH + 1))
        self.counted += DEPTH
        expect(self.read(len(numbers)), numbers, "incr")

    def reconnect(self):
        self.close()
        self.counted = 0


class Binary(Raw):
    def round(self, key, value):
        key = key.encode()
        length = len(key) + len(value) + 8
        head = struct.pack(">BBHBBHIIQII", 0x80, 1, len(key), 8, 0, 0, length, 7, 0, 0, 0) + key
        half = len(value) // 2
        self.send(head + value[:half], value[half:])
        expect(self.read(24)[:8], struct.pack(">BBHBBH", 0x81, 1, 0, 0, 0, 0), "set")
        self.send(struct.pack(">BBHBBHIIQ", 0x80, 0, len(key), 0, 0, 0, len(key), 7, 0) + key)
        expect(self.read(28 + len(value))[28:], value, "get")


class Redis(Worker):
    redis = None

    def round(self, key, value):
        if self.redis is None:
            self.redis = redis.Redis(port=self.node.resp_port, socket_timeout=ANSWER_SECS, retry=None)
        self.redis.set(key, value)
        expect(self.redis.get(key), value, "GET")
        many = {f"{self.client}-m{number}": value[:2000] for number in range(60)}
        self.redis.mset(many)
        expect(self.redis.mget(list(many)), list(many.values()), "MGET")
        expect(self.redis.delete(*many), len(many), "DEL")

    def close(self):
        if self.redis:
            self.redis.close()
        self.redis = None


class Http(Worker):
    http = None

    def round(self, key, value):
        self.http = self.http or http_of(self.node)
        answer = self.http.put(f"/v1/keys/{key}", content=value)
        if answer.status_code not in (201, 204):
            raise Failure(f"{answer.status_code} {answer.text}")
        answer = self.http.get(f"/v1/keys/{key}")
        if answer.status_code != 200 or answer.content != value:
            raise Failure(f"{answer.status_code} {answer.text[:100]}")

    def close(self):
        if self.http:
            self.http.close()
        self.http = None


class Grpc(Worker):
    sizes = SIZES_GRPC
    cache = None

    def round(self, key, value):
        self.cache = self.cache or Cache(self.node.grpc_address)
        self.cache.Set(key=key.encode(), value=value)
        found = self.cache.Get(key=key.encode())
        expect(found.value if found.found else b"missing", value, "Get")

    def close(self):
        if self.cache:
            self.cache.channel.close()
        self.cache = None


@contextlib.contextmanager
def workers(nodes):
    """Runs clients of all protocols at these nodes. At the end of the block, checks that no request has failed and that
    all values are stored."""
    kinds = {"text": Text, "binary": Binary, "redis": Redis, "http": Http, "grpc": Grpc}
    all_workers = [kind(node, name) for node in nodes for name, kind in kinds.items()]
    for worker in all_workers:
        worker.start()
    try:
        wait_until(lambda: all(worker.rounds > 2 for worker in all_workers), "the first answers")
        yield all_workers
        counts = [worker.rounds for worker in all_workers]
        is_done = lambda: all(worker.rounds > n + 1 for worker, n in zip(all_workers, counts))  # noqa: E731
        wait_until(is_done, "answers")
    finally:
        for worker in all_workers:
            worker.end.set()
        for worker in all_workers:
            worker.join(60)
    evictions = [node.stats()["evictions"] for node in nodes]
    assert evictions == ["0"] * len(nodes)
    failures = [failure for worker in all_workers for failure in worker.failures]
    assert not failures, f"{len(failures)} of {sum(worker.rounds for worker in all_workers)}: {failures[:20]}"
    for worker in all_workers:
        for key, value in worker.stored.items():
            assert client(nodes[0]).get(key) == value, key


OPTIONS = ("-I", "2m", "--ack", "writes")


@pytest.mark.parametrize("transfers", [8, pytest.param(60, marks=pytest.mark.long)])
def test_transfers_fail_no_request(etcd, transfers):
    name = f"planned{transfers}"
    with cluster(etcd, name, 2, 2, *OPTIONS, http=True, grpc=True, resp=True) as groups:
        larder(etcd, "move", name, "--to", "1")
        # The clients use the leader and a follower of the first group, and a node of the second group.
        with workers([*groups[0], groups[1].leader()]):
            for number in range(transfers):
                group = groups[1] if number % 4 == 3 else groups[0]
                before = group.leader()
                larder(etcd, "transfer-leadership", name, "--group", str(groups.index(group)))
                wait_until(lambda: group.leader() is not before, "the next leader")
                group.wait_until_in_sync()


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.long)])
def test_migrations_fail_no_request(etcd, rounds):
    """All slots move from one group to another, and back."""
    name = f"leaving{rounds}"
    with cluster(etcd, name, 2, 2, *OPTIONS, http=True, grpc=True, resp=True) as groups:
        with workers([*groups[0], groups[1].leader()]):
            for _ in range(rounds):
                larder(etcd, "move", name, "--to", "1")
                assert set(owned(etcd, name)) == {"0", "1"}
                larder(etcd, "drain", name, "0")
                larder(etcd, "move", name, "--to", "0")
                larder(etcd, "drain", name, "1")
                assert set(owned(etcd, name)) == {"0"}


def test_nodes_that_shut_down_fail_no_request_of_others(etcd):
    options = ("--cluster", "shutdown", *OPTIONS)
    with Group(etcd, 3, *options, http=True, grpc=True, resp=True) as group:
        for _ in range(3):
            leader, others = group.leader(), group.followers()
            with workers(others):
                leader.process.terminate()
                leader.process.wait(TIMEOUT_SECS)
                del group.nodes[leader.name]
                leader.dir.cleanup()
                wait_until(lambda: any(node.leads() for node in others), "the next leader")
            group.start(leader.name)
            group.wait_until_in_sync()
