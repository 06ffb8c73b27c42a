"""HTTP and gRPC through nodes that do not own the items, while nodes fail and slots move."""

import contextlib
import signal
import socket
import threading
import time

import grpc
import pytest

from group import Group, PATIENCE_SECS, PAUSE_SECS, client, http_of
from grpc_client import Cache
from pace import Pace
from replicas import ask, keys
from resp_peer import ALL, Peer, push
from server import has_read_all, wait_until
from test_many_groups import cluster, larder

pytestmark = pytest.mark.larder


def test_operations_of_a_batch_fail_separately(etcd):
    with cluster(etcd, "webdead", 2, 1, http=True) as (first, second):
        larder(etcd, "move", "webdead", "--to", "1")
        node = first.leader()
        client(node).set_many({f"k{number}": "v" for number in range(100)})
        mine = [key.decode() for key in keys(node)]
        others = [f"k{number}" for number in range(100) if f"k{number}" not in mine]
        assert len(mine) > 20 and len(others) > 20
        second.kill(second.leader())
        with http_of(node) as http:

            def statuses(operations):
                answer = http.post("/v1/batch", json={"operations": operations})
                assert answer.status_code == 200, answer.text
                return [result["status"] for result in answer.json()["results"]]

            def put(key):
                return {"op": "set", "key": key, "value": "w"}

            assert statuses([put(mine[0]), put(others[0]), put(mine[1])]) == [204, 503, 204]
            assert client(node).get_many(mine[:2]) == {mine[0]: b"w", mine[1]: b"w"}
            # Without a leader, the batch must not wait for the timeouts of its operations one after another.
            start_time = time.monotonic()
            assert statuses([put(key) for key in others[:20] * 50])[-1] == 503
            assert time.monotonic() - start_time < 15


def test_a_lookup_through_another_node_changes_nothing(etcd):
    with cluster(etcd, "webstale", 1, 2, http=True) as (group,):
        leader, follower = group.leader(), group.followers()[0]
        assert client(leader).set("a", "1")
        assert ask(leader, b"md a I T30\r\n", b"\r\n") == b"HD\r\n"
        with http_of(follower) as http:
            before = int(leader.stats()["get_misses"])
            assert http.get("/v1/keys/a").text == "1"
            assert http.put("/v1/keys/new", content=b"1").status_code == 201
            assert int(leader.stats()["get_misses"]) == before, "whether there was one is no look-up"
        # The first client that looks up the item may recompute it.
        assert ask(leader, b"mg a v\r\n", b"1\r\n") == b"VA 1 X W\r\n1\r\n"


def test_a_node_that_shuts_down_answers_waiting_requests(etcd):
    with cluster(etcd, "webends", 1, 2, http=True) as (group,):
        leader, follower = group.leader(), group.followers()[0]
        leader.signal(signal.SIGSTOP)
        host, port = follower.http_address.rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(socket.create_connection((host, port), 60)) for _ in range(8)]
            for sock in waiting:
                sock.sendall(b"GET /v1/keys/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda: has_read_all(follower.http_address), "reading the requests")
            follower.process.terminate()
            for sock in waiting:
                status = sock.makefile("rb").readline()
                assert status.split()[1:2] in ([b"503"], [b"404"]), status
        follower.process.wait(10)
        leader.signal(signal.SIGCONT)


class WebClient:
    """Repeatedly stores an item over HTTP and reads it over gRPC through one node, and records the results."""

    def __init__(self, node):
        self.node = node
        self.end = threading.Event()
        self.done, self.faults, self.stored = [], [], {}
        # Errors that the node returned without waiting for a leader.
        self.early_faults = []
        self.pace = Pace()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        with http_of(self.node) as http, Cache(self.node.grpc_address) as cache:
            number = 0
            while not self.end.is_set():
                number += 1
                time.sleep(PAUSE_SECS)
                is_large = number % 5 == 0
                key, value = f"{self.node.name}-{number % 50}", str(number) + "x" * (300_000 if is_large else 0)
                start_time, faults = time.monotonic(), len(self.faults)
                try:
                    answer = http.put(f"/v1/keys/{key}", content=value)
                    if answer.status_code in (201, 204):
                        self.stored[key] = value
                        found = cache.Get(key=key.encode())
                        assert found.found and found.value == value.encode(), (key, value, found)
                        self.done.append(time.monotonic())
                    else:
                        self.stored.pop(key, None)
                        self.faults.append((answer.status_code, answer.text))
                except grpc.RpcError as error:
                    self.faults.append((error.code().name, error.details()))
                is_early = time.monotonic() - start_time < PATIENCE_SECS
                if len(self.faults) > faults and is_early:
                    self.early_faults.append(self.faults[-1])

    def __enter__(self):
        self.pace.__enter__()
        self.thread.start()
        wait_until(lambda: len(self.done) > 10, "the first answers")
        return self

    def __exit__(self, *exc):
        self.end.set()
        self.thread.join()
        self.pace.__exit__()
        times = self.done
        self.gap = self.pace.without_delay(max((after - before for before, after in zip(times, times[1:])), default=0))


def test_no_request_fails_during_moves_and_leadership_transfers(etcd):
    with cluster(etcd, "webmoves", 2, 2, http=True, grpc=True) as groups:
        nodes = [node for group in groups for node in group]
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(WebClient(node)) for node in nodes]
            larder(etcd, "move", "webmoves", "--to", "1")
            larder(etcd, "transfer-leadership", "webmoves")
            larder(etcd, "drain", "webmoves", "1")
        for one in clients:
            assert not one.early_faults, (one.node.name, one.early_faults)
            assert {code for code, _ in one.faults} <= {503, "UNAVAILABLE"}, one.faults
            assert one.gap < 1.5, one.gap
            for key, value in one.stored.items():
                assert client(nodes[0]).get(key) == value.encode()


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_requests_continue_when_a_leader_is_lost(etcd, end):
    name = f"web{end}"
    with cluster(etcd, name, 1, 3, "--ack", "writes", http=True, grpc=True) as (group,):
        leader, followers = group.leader(), group.followers()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(WebClient(node)) for node in followers]
            if end == "killed":
                group.kill(leader)
            else:
                leader.signal(signal.SIGSTOP)
            wait_until(lambda: any(node.leads() for node in followers), "another leader")
            counts = [len(one.done) for one in clients]
            wait_until(lambda: all(len(one.done) > n + 20 for one, n in zip(clients, counts)), "answers")
        for one in clients:
            assert one.gap < 4, one.gap
            # A request fails if the group has no leader, or if a change was sent but not answered and its outcome is
            # unknown.
            assert {code for code, _ in one.faults} <= {503, 504, "UNAVAILABLE"}, one.faults
            for key, value in one.stored.items():
                assert client(followers[0]).get(key) == value.encode(), key
        if end == "stopped":
            leader.signal(signal.SIGCONT)


def test_a_slow_upload_reaches_the_new_leader(etcd):
    """The leader changes while the value arrives. The node sends the value to the new leader."""
    with cluster(etcd, "webslow", 1, 2, "-I", "8m", http=True) as (group,):
        old, new = group.leader(), group.followers()[0]
        host, port = new.http_address.split(":")
        value = b"x" * (4 << 20)
        with socket.create_connection((host, int(port)), 30) as sock:
            head = f"PUT /v1/keys/slow HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(value)}\r\n\r\n"
            sock.sendall(head.encode() + value[: 1 << 20])
            time.sleep(0.3)
            larder(etcd, "transfer-leadership", "webslow")
            wait_until(new.leads, "another leader")
            sock.sendall(value[1 << 20 :])
            said = sock.recv(1000)
        assert said.startswith(b"HTTP/1.1 201 "), said
        assert client(old).get("slow") == value


def test_messages_of_tracking_in_a_cluster(etcd):
    """Each node of a group sends messages about all changes. When slots move to a second group, a client drops its
    cached items, and from then on receives messages about the items of both groups."""
    with cluster(etcd, "tracking", 1, 2, resp=True) as (group,):
        leader, other = group.leader(), group.followers()[0]
        for node in (leader, other):
            reader, writer = Peer(node.resp_port, resp3=True), Peer(leader.resp_port)
            assert reader.ask("CLIENT TRACKING ON", "MGET a b", "GET c").startswith(b"+OK")
            received = b""

            def has(message):
                nonlocal received
                received += reader.ask()
                return message in received

            for key in ("a", "b", "c"):
                writer.ask(f"SET {key} {node.name}")
                wait_until(lambda: has(push(key)), "the message")
            assert received == push("a") + push("b") + push("c")
            reader.close()
            writer.close()
        reader = Peer(other.resp_port, resp3=True)
        assert reader.ask("CLIENT TRACKING ON") == b"+OK\r\n"
        with Group(etcd, 1, "--cluster", "tracking", "--group", "1", prefix="g1n"):
            larder(etcd, "move", "tracking", "--to", "1")
            received = b""
            wait_until(lambda: has(ALL), "the message about all items")

            def is_reported(key):
                """Returns whether a change causes a message about its key. Shortly after a move, the message is about
                all items instead."""
                nonlocal received
                received = reader.ask(f"GET {key}")
                client(leader).set(key, "moved")
                wait_until(lambda: has(push(key)) or has(ALL), "the message")
                return ALL not in received

            for key in ("a", "b", "c"):
                wait_until(lambda: is_reported(key), "a message about the key")
