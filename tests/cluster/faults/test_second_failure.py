"""A leader exits right after its election. The members that were in sync before the election are still in sync."""

import signal

import pytest

from group import Group, client
from server import wait_until
from test_operators import larder

pytestmark = pytest.mark.larder

ITEMS = {f"k{number}": b"v%d" % number for number in range(100)}


def fill(group, leader):
    assert client(leader).set_many({key: value.decode() for key, value in ITEMS.items()}) == []
    client(leader).set("gone", "1")
    assert client(leader).delete("gone")


def check(node):
    wait_until(node.leads, "the last leader")
    assert client(node).get_many([*ITEMS, "gone"]) == ITEMS


def test_the_next_leader_ends_before_the_third_member_has_connected(etcd):
    """The third member is paused for less time than its lease at etcd lasts."""
    with Group(etcd, 3, "--cluster", "second", "--ack", "writes") as group:
        leader, followers = group.leader(), group.followers()
        fill(group, leader)
        next_leader, third = followers
        third.signal(signal.SIGSTOP)
        group.kill(leader)
        wait_until(next_leader.leads, "another leader")
        group.kill(next_leader)
        third.signal(signal.SIGCONT)
        check(third)


def test_the_next_leader_ends_while_others_join_it(etcd):
    for round in range(5):
        with Group(etcd, 3, "--cluster", f"joins{round}", "--ack", "writes") as group:
            leader = group.leader()
            fill(group, leader)
            group.kill(leader)
            wait_until(lambda: any(node.leads() for node in group), "another leader")
            group.kill(next(node for node in group if node.leads()))
            check(next(iter(group)))


def test_the_next_leader_ends_right_after_a_transfer(etcd):
    with Group(etcd, 3, "--cluster", "handed") as group:
        for round in range(3):
            leader = group.leader()
            fill(group, leader)
            group.wait_until_in_sync()
            next_leader = group.followers()[0]
            assert larder(etcd, "transfer-leadership", "handed", next_leader.name)[0]
            wait_until(next_leader.leads, "the next leader")
            in_sync = next_leader.seen()["in_sync"].split()
            group.kill(next_leader)
            assert len(in_sync) == 3, "all members stay in sync"
            wait_until(lambda: any(node.leads() for node in group), "another leader")
            check(next(node for node in group if node.leads()))
            group.start(next_leader.name)
            group.wait_until_in_sync()
