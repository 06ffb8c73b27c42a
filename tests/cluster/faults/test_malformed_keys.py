"""Nodes repair keys in etcd that an operator has overwritten or deleted by mistake."""

import json
import signal

import pytest

from group import Group, client, encode, larder, wait_for_same_keys
from server import wait_until

pytestmark = pytest.mark.larder


def test_a_group_fails_over_with_a_malformed_map(etcd):
    with Group(etcd, 2, "--cluster", "nomap") as group:
        before = etcd.value("nomap/map")
        assert before["slots"] == {"0": "0-4095"}
        leader, follower = group.leader(), group.followers()[0]
        client(leader).set("a", "1")
        wait_for_same_keys(group)
        leader.signal(signal.SIGSTOP)
        etcd.overwrite("nomap/map", "nonsense")
        group.kill(leader)
        wait_until(follower.leads, "another leader")
        assert client(follower).get("a") == b"1"
        wait_until(lambda: etcd.value("nomap/map") == before, "the earlier map")
        assert "the shard map was malformed: it has its earlier value again" in follower.output()


def test_a_malformed_record_is_repaired(etcd):
    with Group(etcd, 2, "--cluster", "norecord") as group:
        leader, follower = group.leader(), group.followers()[0]
        client(leader).set("a", "1")
        wait_for_same_keys(group)
        before = etcd.value("norecord/groups/0")
        etcd.overwrite("norecord/groups/0", "{}")
        etcd.overwrite("norecord/groups/0", "nonsense")
        wait_until(lambda: etcd.value("norecord/groups/0") == before, "the earlier record")
        shown = "the record of the group was malformed: it has its earlier value again"
        assert any(shown in node.output() for node in group)
        group.kill(leader)
        wait_until(follower.leads, "another leader")
        assert client(follower).get("a") == b"1"


def test_a_deleted_map_of_two_groups_gets_its_last_value_again(etcd):
    with (
        Group(etcd, 1, "--cluster", "nomaps") as first,
        Group(etcd, 1, "--cluster", "nomaps", "--group", "1", prefix="m") as second,
    ):
        items = {f"k{number}": b"v" for number in range(200)}
        client(first.leader()).set_many(items)
        done, shown = larder(etcd, "move", "nomaps", "--to", "1")
        assert done, shown
        before = etcd.value("nomaps/map")
        assert set(before["slots"]) == {"0", "1"}
        etcd.call("/v3/kv/deleterange", {"key": encode("/larder/1/nomaps/map")})
        wait_until(lambda: etcd.value("nomaps/map") == before, "the last map")
        for node in (*first, *second):
            assert client(node).get_many(items) == items
        done, shown = larder(etcd, "drain", "nomaps", "1")
        assert done, shown
        assert client(second.leader()).get_many(items) == items


def test_a_map_that_etcd_has_no_value_of_is_shown_in_the_log(etcd):
    """After a compaction, the nodes write the map that they have in memory, unless slots may have moved since."""
    with Group(etcd, 1, "--cluster", "compact") as group:
        node = group.leader()
        before = etcd.value("compact/map")
        revision = etcd.call("/v3/kv/range", {"key": encode("a")})["header"]["revision"]
        etcd.call("/v3/kv/compaction", {"revision": revision})
        etcd.overwrite("compact/map", "nonsense")
        # etcd still has the revision with the previous value.
        wait_until(lambda: etcd.value("compact/map") == before, "the earlier map")
        plan = json.dumps({"slots": {"0": "0-4095"}, "moves": {"7": "0-99"}}, separators=(",", ":"))
        etcd.overwrite("compact/map", plan)
        wait_until(lambda: node.seen()["slots_moving"] == "100", "the plan")
        node.signal(signal.SIGSTOP)
        revision = etcd.call("/v3/kv/deleterange", {"key": encode("/larder/1/compact/map")})["header"]["revision"]
        etcd.call("/v3/kv/compaction", {"revision": revision})
        node.signal(signal.SIGCONT)
        wait_until(lambda: "the shard map is lost" in node.output() and plan in node.output(), "the warning")
        assert etcd.value("compact/map") is None
        assert client(node).set("a", "1")
