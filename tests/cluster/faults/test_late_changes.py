"""A change that a node has reported as failed never takes effect later. `cuts.py` tests this on partitioned networks."""

import signal
import socket
import time
from contextlib import ExitStack

import pytest

from group import Group, client
from server import TIMEOUT_SECS, wait_until

pytestmark = pytest.mark.larder

CHANGES = [
    b"set old 0 0 5\r\nstale\r\n",
    b"incr counter 1\r\n",
    b"append kept 0 0 1\r\nx\r\n",
    b"delete kept\r\n",
    b"flush_all\r\n",
]
ITEMS = {"old": b"1", "counter": b"1", "kept": b"1"}


def connect(stack, node):
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), TIMEOUT_SECS))
    # A reply of the leader shows that the node has a connection to the leader.
    sock.sendall(b"mg counter v\r\n")
    assert sock.recv(100).startswith(b"VA")
    return sock


def reply(sock):
    """Returns the reply, or empty bytes if the node has closed the connection."""
    try:
        return sock.recv(1000)
    except ConnectionError:
        return b""


def test_changes_that_failed_while_the_leader_was_paused_are_not_made_later(etcd):
    """The requests are in socket buffers of the leader's system. The pause is shorter than the leader's lease at etcd,
    so the node stays leader."""
    with Group(etcd, 2, "--cluster", "late") as group, ExitStack() as stack:
        leader, [follower] = group.leader(), group.followers()
        for round in range(3):
            assert client(leader).set_many({key: value.decode() for key, value in ITEMS.items()}) == []
            socks = [connect(stack, follower) for _ in CHANGES]
            leader.signal(signal.SIGSTOP)
            for sock, change in zip(socks, CHANGES):
                sock.sendall(change)
            replies = [reply(sock) for sock in socks]
            leader.signal(signal.SIGCONT)
            assert replies == [b""] * len(CHANGES)
            # When the leader answers on the next connection, it has handled everything from the first connection.
            assert client(follower).set("next", str(round))
            assert client(leader).get_many(ITEMS) == ITEMS
        assert group.leader() is leader


def test_no_change_fails_in_a_short_pause(etcd):
    with Group(etcd, 2, "--cluster", "short") as group, ExitStack() as stack:
        leader, [follower] = group.leader(), group.followers()
        client(leader).set("counter", "1")
        sock = connect(stack, follower)
        for paused in (leader, follower):
            for number in range(3):
                paused.signal(signal.SIGSTOP)
                sock.sendall(b"incr counter 1\r\n")
                time.sleep(0.4)
                paused.signal(signal.SIGCONT)
                assert reply(sock).strip().isdigit()
        assert client(leader).get("counter") == b"7"


def test_a_paused_node_forwards_again(etcd):
    """The leases of the paused node have expired, and the leader has not received new leases."""
    with Group(etcd, 2, "--cluster", "woken") as group, ExitStack() as stack:
        leader, [follower] = group.leader(), group.followers()
        client(leader).set("counter", "1")
        sock = connect(stack, follower)
        follower.signal(signal.SIGSTOP)
        sock.sendall(b"incr counter 1\r\n")
        time.sleep(3)
        follower.signal(signal.SIGCONT)
        assert reply(sock).strip() in (b"2", b"")
        wait_until(lambda: client(follower).set("next", "1"), "a forwarded change")


def test_a_change_that_a_killed_leader_had_fails_at_once(etcd):
    """The node detects the leader's exit before the leader's leases expire."""
    with Group(etcd, 3, "--cluster", "ended", "--ack", "writes") as group, ExitStack() as stack:
        leader, followers = group.leader(), group.followers()
        client(leader).set("counter", "1")
        socks = [connect(stack, follower) for follower in followers]
        leader.signal(signal.SIGSTOP)
        for sock in socks:
            sock.sendall(b"incr counter 1\r\n")
        group.kill(leader)
        for sock in socks:
            assert reply(sock) == b""
        wait_until(lambda: any(node.leads() for node in followers), "another leader")
        assert client(followers[0]).get("counter") == b"1"
