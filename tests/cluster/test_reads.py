"""`--read-lag`: followers answer lookups while their replication lag is within the limit."""

import signal
import time

import httpx
import pytest
import redis

from group import Etcd, Group, client, no_leader, wait_for_same_keys
from replicas import ask
from server import wait_until

pytestmark = pytest.mark.larder


def gets(node):
    return int(node.stats()["cmd_get"])


def test_followers_answer_lookups(etcd):
    with Group(etcd, 3, "--cluster", "reads", "--read-lag", "1", resp=True, http=True) as group:
        leader, (follower, _) = group.leader(), group.followers()
        assert client(follower).set("a", "1"), "changes go to the leader"
        wait_for_same_keys(group)
        wait_until(lambda: follower.seen()["serves_reads"] == "1", "a replica that is recent enough")
        assert leader.seen()["serves_reads"] == "0"
        before = gets(leader)
        for _ in range(20):
            assert client(follower).get("a") == b"1"
            assert ask(follower, b"mg a v\r\n", b"1\r\n") == b"VA 1\r\n1\r\n"
        assert redis.Redis(port=follower.resp_port).mget("a", "none") == [b"1", None]
        url = f"http://{follower.http_address}/v1/keys/a"
        assert httpx.get(url).text == "1"
        assert gets(leader) == before, "the leader was not asked"
        assert client(follower).incr("a", 5) == 6
        wait_until(lambda: client(follower).get("a") == b"6", "the change has come")
        assert httpx.put(url, content="7").status_code == 204
        wait_until(lambda: httpx.get(url).text == "7", "the change has come")


def test_the_leader_counts_forwarded_requests(etcd):
    with Group(etcd, 2, "--cluster", "counts") as group:
        leader, follower = group.leader(), group.followers()[0]
        counters = ["cmd_get", "get_hits", "cmd_set"]

        def counts(node):
            stats = node.stats()
            return [int(stats[name]) for name in counters]

        before, own, batches = counts(leader), counts(follower), int(follower.seen()["forwarded"])
        assert client(follower).set("a", "1")
        for _ in range(3):
            assert client(follower).get("a") == b"1"
        assert [after - first for after, first in zip(counts(leader), before, strict=True)] == [3, 3, 1]
        assert counts(follower) == own
        assert int(follower.seen()["forwarded"]) >= batches + 4


def test_a_lagging_follower_does_not_answer_lookups(etcd):
    with Group(etcd, 2, "--cluster", "old", "--read-lag", "1") as group:
        leader, follower = group.leader(), group.followers()[0]
        assert client(leader).set("a", "1")
        wait_for_same_keys(group)
        wait_until(lambda: follower.seen()["serves_reads"] == "1", "a replica that is recent enough")
        follower.signal(signal.SIGSTOP)
        wait_until(lambda: leader.seen()["in_sync"].split() == [leader.name], "the leader alone")
        assert client(leader).set("a", "2")
        leader.signal(signal.SIGSTOP)
        time.sleep(1.1)
        follower.signal(signal.SIGCONT)
        # The follower now receives the changes in the socket buffers. It receives no heartbeat, so it does not know how
        # old these changes are.
        with follower.connect() as sock:
            sock.sendall(b"get a\r\n")
            time.sleep(0.3)
            leader.signal(signal.SIGCONT)
            said = sock.recv(100)
        assert said in (b"VALUE a 0 1\r\n2\r\nEND\r\n", b"SERVER_ERROR no leader\r\n"), said


def test_a_node_in_a_full_sync_does_not_answer_lookups(etcd):
    """During a full sync, a node forwards lookups instead of answering them itself."""
    with Group(etcd, 2, "--cluster", "copies", "--read-lag", "5", "--journal-size", "1") as group:
        leader, follower = group.leader(), group.followers()[0]
        assert client(leader).set("kept", "1")
        wait_for_same_keys(group)
        wait_until(lambda: follower.seen()["serves_reads"] == "1", "a replica that is recent enough")
        noise = b"".join(b"set %s%d 0 0 1 noreply\r\nx\r\n" % (b"f" * 200, number) for number in range(20_000))
        copies = int(follower.stats("replication")["full_syncs_received"])
        with leader.connect() as sock, follower.connect() as reader:
            follower.signal(signal.SIGSTOP)
            sock.sendall(noise + b"version\r\n")
            assert sock.recv(100).startswith(b"VERSION")
            follower.signal(signal.SIGCONT)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                reader.sendall(b"get kept\r\n")
                assert reader.recv(100) == b"VALUE kept 0 1\r\n1\r\nEND\r\n"
        assert int(follower.stats("replication")["full_syncs_received"]) > copies, "another full sync"


def test_a_follower_of_a_partitioned_leader_does_not_answer_lookups():
    """The leader and this follower are partitioned from the rest, so another leader may have changed the items."""
    with Etcd() as own, Group(own, 3, "--read-lag", "1") as group:
        leader, (follower, still) = group.leader(), group.followers()
        wait_until(lambda: follower.seen()["serves_reads"] == "1", "a replica that is recent enough")
        own.process.send_signal(signal.SIGSTOP)
        still.signal(signal.SIGSTOP)
        wait_until(lambda: leader.seen()["serving"] == "0", "a leader in doubt")
        wait_until(lambda: follower.seen()["serves_reads"] == "0", "a replica of unknown age")
        assert no_leader(follower)
        assert float(follower.stats("replication")["link_lag"]) < 60, "what is not known is no lag"
        own.process.send_signal(signal.SIGCONT)
