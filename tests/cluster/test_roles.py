"""`ROLE` and `INFO replication` of the members of a group."""

import pytest
import redis

from group import Etcd, Group, client, wait_for_same_keys
from server import Server, wait_until

pytestmark = pytest.mark.larder


def connect(node):
    return redis.Redis(port=node.resp_port, decode_responses=True)


def shown(node):
    return connect(node).info("replication")


def slaves(of_leader):
    return {tuple(of_leader[f"slave{number}"].values())[:3] for number in range(of_leader["connected_slaves"])}


def test_without_a_leader():
    options = ["--cluster", "demo", "--etcd", "http://127.0.0.1:1", "--replicate-on", "127.0.0.1:0"]
    with Server(options=options, resp=True) as alone:
        assert connect(alone).role() == ["slave", "", 0, "connecting", -1]
        of_alone = shown(alone)
        assert (of_alone["role"], of_alone["master_host"], of_alone["master_port"]) == ("slave", "", 0)
        assert of_alone["master_link_status"] == "down" and of_alone["master_last_io_seconds_ago"] == -1


def test_members_report_the_leader():
    with Etcd() as etcd, Group(etcd, 3, "--cluster", "roles", resp=True) as group:
        for node in group:
            client(node).set(node.name, "1")
        wait_for_same_keys(group)
        check(group)
        group.kill(group.leader())
        wait_until(lambda: any(node.leads() for node in group), "another leader")
        wait_until(lambda: shown(group.leader())["connected_slaves"] == 1, "a follower")
        wait_for_same_keys(group)
        check(group)


def check(group):
    leader = group.leader()
    followers = group.followers()
    wait_until(lambda: len(connect(leader).role()[2]) == len(followers), "followers without a copy under way")
    of_leader = shown(leader)
    assert of_leader["role"] == "master"
    assert slaves(of_leader) == {("127.0.0.1", node.port, "online") for node in followers}
    assert connect(leader).role()[0] == "master"
    for node in followers:
        wait_until(lambda: shown(node)["master_link_status"] == "up", "a link")
        of_node = shown(node)
        assert (of_node["role"], of_node["master_host"], of_node["master_port"]) == ("slave", "127.0.0.1", leader.port)
        # The member forwards changes to the leader.
        assert of_node["slave_read_only"] == 0
        assert connect(node).role()[:4] == ["slave", "127.0.0.1", leader.port, "connected"]
        assert connect(node).set(f"by-{node.name}", 1)
        wait_until(
            lambda: shown(node)["slave_repl_offset"] == shown(leader)["master_repl_offset"], "the same offset"
        )
