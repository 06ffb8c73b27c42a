"""Several groups: slots move between groups with their items."""

import contextlib
import pathlib
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest
import redis

from group import PAUSE_SECS, Client, Group, Node, client
from group import larder as run_larder
from replicas import ask, keys, read_until
from server import LARDERD, wait_until

pytestmark = pytest.mark.larder

SLOTS = 4096


def larder(etcd, task, cluster, *words):
    """Runs `larder cluster`, which must succeed, and returns its output."""
    succeeded, shown = run_larder(etcd, task, cluster, *words)
    assert succeeded, shown
    return shown


@contextlib.contextmanager
def cluster(etcd, name, groups=2, nodes=2, *options, **more):
    """Provides the groups of one cluster. The first group owns all slots."""
    with contextlib.ExitStack() as stack:
        all_groups = []
        for number in range(groups):
            named = ("--cluster", name, "--group", str(number), *options)
            all_groups.append(stack.enter_context(Group(etcd, nodes, *named, prefix=f"g{number}n", **more)))
        yield all_groups


def owned(etcd, name):
    """Returns the number of slots of each group, from `larder cluster status`."""
    sizes, group = {}, None
    for line in larder(etcd, "status", name).splitlines():
        if line.startswith("group "):
            group = line.split()[1].rstrip(":")
        elif line.startswith("  slots "):
            sizes[group] = int(line.rpartition("(")[2].rstrip(")"))
    return sizes


def test_items_move_to_a_new_group_with_their_slots(etcd):
    with cluster(etcd, "warm", 2, 2, resp=True) as (first, second):
        many = {f"k{number}": b"v%d" % number for number in range(4000)}
        client(first.leader()).set_many(many)
        client(second.followers()[0]).set("large", b"x" * 900_000, expire=1000)
        larder(etcd, "move", "warm", "--to", "1")
        assert owned(etcd, "warm") == {"0": SLOTS // 2, "1": SLOTS // 2}
        # Each node must find all items, and each group must store only its own items.
        for node in (*first, *second):
            assert client(node).get_many(many) == many, node.name
            assert client(node).get("large") == b"x" * 900_000
        for group in (first, second):
            wait_until(lambda: 1700 < len(keys(group.leader())) < 2300, "half of the keys")
            wait_until(lambda: all(keys(node) == keys(group.leader()) for node in group), "the same keys")
        in_both = set(keys(first.leader())) & set(keys(second.leader()))
        assert not in_both
        # A node that does not own all keys answers a get of many keys and executes changes.
        node = second.followers()[0]
        names = " ".join(list(many)[:100])
        answer = ask(node, f"get {names}\r\n".encode(), b"END\r\n")
        assert answer == b"".join(b"VALUE k%d 0 %d\r\nv%d\r\n" % (n, len(f"v{n}"), n) for n in range(100)) + b"END\r\n"
        by_redis = redis.Redis(port=node.resp_port)
        for number in range(100):
            by_redis.set(f"r{number}", number)
        assert [client(first.leader()).get(f"r{n}") for n in range(100)] == [b"%d" % n for n in range(100)]
        # Commands on several keys must reach the keys of both groups.
        for node in (*first, *second):
            for protocol in (2, 3):
                by_redis = redis.Redis(port=node.resp_port, protocol=protocol)
                assert by_redis.mset({f"r{n}": f"new{n}" for n in range(200)})
                assert by_redis.mget([f"r{n}" for n in range(201)]) == [b"new%d" % n for n in range(200)] + [None]
                assert by_redis.exists("r1", "r2", "r3", "none", "r1") == 4
                assert by_redis.touch("r1", "r2", "r3", "none") == 3
                assert by_redis.delete(*(f"r{n}" for n in range(300))) == 200
        client(node).flush_all()
        for other in (*first, *second):
            assert client(other).get_many(many) == {}, other.name


def test_no_change_is_lost_during_moves(etcd):
    with cluster(etcd, "moving", 3, 2) as groups:
        filling = client(groups[0].leader())
        for start in range(0, 20_000, 1000):
            filling.set_many({f"f{number}": b"x" * 500 for number in range(start, start + 1000)})
        nodes = [groups[0].leader(), groups[0].followers()[0], groups[1].leader(), groups[2].followers()[0]]
        with contextlib.ExitStack() as stack:
            asking = [stack.enter_context(Client(node, f"c{n}")) for n, node in enumerate(nodes)]
            larder(etcd, "move", "moving", "--to", "1")
            larder(etcd, "move", "moving", "--to", "2")
            larder(etcd, "move", "moving", "--to", "0", "--count", "100")
            larder(etcd, "drain", "moving", "1")
        for one in asking:
            assert not one.early_faults, one.name
            assert one.longest_gap() < 1, one.longest_gap()
        assert owned(etcd, "moving").keys() == {"0", "2"}
        found = {}
        for start in range(0, 20_000, 1000):
            found |= client(groups[1].leader()).get_many([f"f{n}" for n in range(start, start + 1000)])
        assert len(found) == 20_000


def test_pipelines_are_answered_while_their_keys_move(etcd):
    with cluster(etcd, "deep", 3, 1) as groups:
        end, answered = threading.Event(), []

        def ask_on(node, name):
            with socket.create_connection((node.host, node.port), 20) as sock:
                count, number = 0, 0
                while not end.is_set():
                    time.sleep(PAUSE_SECS)
                    keys = [f"{name}{(number + n) % 997}" for n in range(16)]
                    number += 16
                    sock.sendall("".join(f"set {key} 0 0 1\r\nv\r\n" for key in keys).encode())
                    answers = b""
                    while len(answers) < len(b"STORED\r\n") * 16:
                        answers += sock.recv(4096) or b"closed"
                    assert answers == b"STORED\r\n" * 16, answers
                    count += 1
                answered.append(count)

        nodes = [group.leader() for group in groups] * 3
        asking = [threading.Thread(target=ask_on, args=(node, f"c{n}-")) for n, node in enumerate(nodes)]
        for thread in asking:
            thread.start()
        larder(etcd, "move", "deep", "--to", "1")
        larder(etcd, "move", "deep", "--to", "2")
        larder(etcd, "drain", "deep", "1")
        larder(etcd, "move", "deep", "--to", "1")
        end.set()
        for thread in asking:
            thread.join()
        assert len(answered) == len(asking), "each client has had all its answers"


def test_keys_are_watched_by_their_owner(etcd):
    with cluster(etcd, "watch", 2, 2, resp=True) as (first, second):
        leader, others = first.leader(), [*first.followers(), second.leader()]
        with redis.Redis(port=leader.resp_port, socket_timeout=30) as client:
            client.set("key", 1)
            assert client.transaction(lambda pipe: pipe.multi() or pipe.incr("key"), "key") == [2]
        for node in others:
            with redis.Redis(port=node.resp_port, socket_timeout=30) as client, client.pipeline() as pipe:
                with pytest.raises(redis.ResponseError, match="connect to the leader"):
                    pipe.watch("key")


def test_cas_values_are_unique_across_groups(etcd):
    with cluster(etcd, "cas", 2, 1) as (first, second):
        one = client(first.leader())
        one.set_many({f"k{n}": "0" for n in range(200)})
        before = {f"k{n}": one.gets(f"k{n}")[1] for n in range(200)}
        one.set_many({f"k{n}": "1" for n in range(200)})
        larder(etcd, "move", "cas", "--to", "1", "--count", "4000")
        # The second group assigns a new CAS value to each key. The new value must differ from the value that the first
        # group assigned to the same key.
        for n in range(200):
            one.set(f"k{n}", "2")
            assert one.cas(f"k{n}", "old", before[f"k{n}"]) is False
        value, current = one.gets("k7")
        assert value == b"2" and one.cas("k7", "new", current) is True
        larder(etcd, "move", "cas", "--to", "0", "--count", "3000")
        for n in range(200):
            assert one.cas(f"k{n}", "old", before[f"k{n}"]) is False


@pytest.mark.parametrize("role", ["target", "source"])
def test_a_move_continues_when_a_leader_is_lost(etcd, role):
    name = f"lost-{role}"
    with cluster(etcd, name, 2, 2) as (first, second):
        many = {f"k{number}": b"v%d" % number for number in range(3000)}
        client(first.leader()).set_many(many)
        wait_until(lambda: all(len(keys(node)) == 3000 for node in first), "a copy")
        larder(etcd, "move", name, "--to", "1", "--no-wait")
        group = second if role == "target" else first
        group.kill(group.leader())
        wait_until(lambda: owned(etcd, name) == {"0": SLOTS // 2, "1": SLOTS // 2}, "the move")
        for node in (*first, *second):
            assert client(node).get_many(many) == many


def test_a_leader_paused_during_a_move_returns_no_old_item(etcd):
    with cluster(etcd, "paused", 2, 2) as (first, second):
        one = client(second.leader())
        one.set_many({f"k{n}": "old" for n in range(500)})
        wait_until(lambda: all(len(keys(node)) == 500 for node in first), "a copy")
        leader = first.leader()
        larder(etcd, "move", "paused", "--to", "1", "--no-wait")
        leader.signal(signal.SIGSTOP)
        others = [node for node in first if node is not leader]
        wait_until(lambda: any(node.leads() for node in others), "another leader")
        wait_until(lambda: owned(etcd, "paused").get("1") == SLOTS // 2, "the move")
        wait_until(lambda: one.set("probe", "1"), "answers")
        assert one.set_many({f"k{n}": "new" for n in range(500)}) == []
        leader.signal(signal.SIGCONT)
        for _ in range(3):
            answer = ask(leader, b"get " + b" ".join(b"k%d" % n for n in range(500)) + b"\r\n", b"\r\n")
            assert b"old" not in answer


def test_flushes_reach_items_that_are_moving(etcd):
    with cluster(etcd, "flushed", 2, 1) as (first, second):
        end = threading.Event()

        def flush():
            with socket.create_connection((first.leader().host, first.leader().port), 20) as sock:
                while not end.is_set():
                    sock.sendall(b"flush_all\r\n")
                    assert sock.recv(100) == b"OK\r\n"
                    time.sleep(0.01)

        one = client(second.leader())
        one.set_many({f"k{n}": "v" for n in range(3000)})
        flushing = threading.Thread(target=flush)
        larder(etcd, "move", "flushed", "--to", "1", "--no-wait")
        flushing.start()
        time.sleep(4)
        end.set()
        flushing.join()
        one.set_many({f"n{n}": "v" for n in range(100)})
        wait_until(lambda: owned(etcd, "flushed").get("1") == SLOTS // 2, "the move")
        assert one.get_many([f"k{n}" for n in range(3000)]) == {}
        assert len(one.get_many([f"n{n}" for n in range(100)])) == 100


def test_moves_can_be_cancelled(etcd):
    with cluster(etcd, "cancelled", 2, 1) as (first, second):
        one = client(first.leader())
        one.set("k", "v")
        target = second.leader()
        target.signal(signal.SIGSTOP)
        larder(etcd, "move", "cancelled", "--to", "1", "--no-wait")
        assert "2048" in larder(etcd, "cancel-moves", "cancelled")
        target.signal(signal.SIGCONT)
        wait_until(target.leads, "the leader")
        assert client(target).get("k") == b"v"
        assert owned(etcd, "cancelled") == {"0": SLOTS}


@contextlib.contextmanager
def saturating_writes(node):
    """Stores items at a node with 24 connections, as fast as the node answers."""
    command = [
        str(LARDERD.with_name("larder")), "bench", "-s", node.host, "-p", str(node.port), "-q", "-t", "1", "-c", "24",
        "--pipeline=50", "--ratio=1:0", "--key-maximum=200000", "-d", "4000", "--test-time=600",
    ]  # fmt: skip
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: int(node.stats()["cmd_set"]) > 20_000, "the load")
        yield
        assert load.poll() is None, load.stderr.read()
    finally:
        load.kill()
        load.communicate()


def test_slots_move_while_clients_write_without_a_pause(etcd):
    """Without pacing, the importing leader would never catch up, and the migration would never end."""
    with cluster(etcd, "busy", 2, 1, "-m", "512", "-t", "2") as (first, second), saturating_writes(first.leader()):
        larder(etcd, "move", "busy", "--to", "1")
        assert owned(etcd, "busy") == {"0": SLOTS // 2, "1": SLOTS // 2}
        assert client(second.leader()).set("a", "1")
        larder(etcd, "drain", "busy", "1")


def thread_names(node):
    """Returns the sorted names of a node's threads."""
    tasks = pathlib.Path(f"/proc/{node.pid}/task").glob("*/comm")
    return sorted(task.read_text().strip() for task in tasks)


def test_the_number_of_threads_does_not_depend_on_the_number_of_groups(etcd):
    with cluster(etcd, "threads", 4, 1) as groups:
        nodes, counts = [node for group in groups for node in group], []
        many = {f"k{number}": b"v%d" % number for number in range(200)}
        for number in range(1, 4):
            larder(etcd, "move", "threads", "--to", str(number))
            # All nodes connect to the leaders of all groups that own slots.
            for node in nodes:
                client(node).set_many(many)
                assert client(node).get_many(many) == many, node.name
            # A thread that has connected to a leader ends.
            wait_until(lambda: "dial leader" not in thread_names(nodes[0]), "all connections")
            counts.append(thread_names(nodes[0]))
        assert counts[0] == counts[-1]


def ask_at(port, request):
    """Returns the line that a node sends in reply."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(request)
        return read_until(sock, b"\r\n").decode()


class EtcdProxy:
    """A way to etcd that a test can cut. While it is cut, it closes all connections."""

    def __init__(self, etcd):
        self.target = httpx.URL(etcd.url)
        self.is_cut, self.sockets = False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if self.is_cut:
                    near.close()
                    continue
                far = socket.create_connection((self.target.host, self.target.port))
                self.sockets += [near, far]
                for ends in [(near, far), (far, near)]:
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.is_cut = True
        for end in self.sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def restore(self):
        self.is_cut = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cut()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_a_flush_by_a_node_that_does_not_know_a_new_group_fails(etcd):
    with cluster(etcd, "old-map", 2, 1) as (first, second), EtcdProxy(etcd) as proxy:
        cut_off = Node(proxy, "cut-off", "--cluster", "old-map", "--group", "0", resp=True, http=True)
        first.nodes[cut_off.name] = cut_off
        first.wait_until_in_sync()

        def flush_over_http():
            status = httpx.post(f"http://{cut_off.http_address}/v1/flush", timeout=20).status_code
            return {204: "OK", 503: "no leader"}.get(status, str(status))

        flushes = [
            lambda: ask_at(cut_off.port, b"flush_all\r\n"),
            lambda: ask_at(cut_off.resp_port, b"FLUSHALL\r\n"),
            flush_over_http,
        ]
        assert all("OK" in flush() for flush in flushes)
        proxy.cut()
        larder(etcd, "move", "old-map", "--to", "1")
        many = {f"k{number}": b"v" for number in range(100)}
        client(second.leader()).set_many(many)
        for flush in flushes:
            assert "no leader" in flush()
        proxy.restore()
        for flush in flushes:
            client(second.leader()).set_many(many)
            wait_until(lambda: "OK" in flush(), "the map")
            assert client(second.leader()).get_many(many) == {}
