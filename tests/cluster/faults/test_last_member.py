"""A leader exits while no other member is in sync."""

import signal
import threading

import pytest

from group import Group, client, larder
from server import TIMEOUT_SECS, wait_until

pytestmark = pytest.mark.larder

ITEMS = 500


def end(group, node):
    """Stops a node with SIGTERM. Returns its log."""
    del group.nodes[node.name]
    node.signal(signal.SIGTERM)
    node.process.wait(TIMEOUT_SECS)
    shown = node.output()
    node.dir.cleanup()
    return shown


def test_a_leader_waits_for_a_member_that_joins(etcd):
    with Group(etcd, 1, "--cluster", "joins", "-m", "256") as group:
        leader = group.leader()
        for first in range(0, ITEMS, 100):
            client(leader).set_many({f"k{number}": b"v" * 20_000 for number in range(first, first + 100)})
        second = group.start("n2")
        wait_until(lambda: leader.seen()["members"] == "2", "the second member")
        # The full sync cannot complete while the member is paused.
        second.signal(signal.SIGSTOP)
        leader.signal(signal.SIGTERM)
        second.signal(signal.SIGCONT)
        shown = end(group, leader)
        assert "transferred the leadership to n2" in shown, shown
        wait_until(second.leads, "the next leader")
        assert int(second.stats()["curr_items"]) == ITEMS


def test_the_last_member_warns_before_it_ends(etcd):
    with Group(etcd, 2, "--cluster", "last") as group:
        leader, follower = group.leader(), group.followers()[0]
        group.kill(follower)
        wait_until(lambda: leader.seen()["in_sync"] == leader.name, "the end of the follower")
        assert "while no other member is in sync: the group loses" in end(group, leader)
        # A node that has not led since its start exits without the warning.
        group.start("n1")
        group.start("n2")
        group.wait_until_in_sync()
        assert "while no other member" not in end(group, group.followers()[0])


def test_a_new_leader_that_ends_at_once_transfers_its_items(etcd):
    """When the new leader stops, the members have not yet promised anything to it, so none of them is a candidate at
    first."""
    with Group(etcd, 3, "--cluster", "brief", "--ack", "none") as group:
        for number in range(5):
            group.wait_until_in_sync()
            leader = group.followers()[0]
            transfer = threading.Thread(target=larder, args=(etcd, "transfer-leadership", "brief", leader.name))
            transfer.start()
            wait_until(leader.leads, "the new leader")
            assert client(leader).set(f"k{number}", "1")
            end(group, leader)
            transfer.join()
            assert client(group.leader()).get(f"k{number}") == b"1"
            group.start(leader.name)
