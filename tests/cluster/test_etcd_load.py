"""The requests of an idle group to etcd, and the changes that the members find."""

import re

import httpx
import pytest

from group import Etcd, Group, decode, encode
from server import wait_until
from test_discovery import addresses, listed, servers_of

pytestmark = pytest.mark.larder


def calls(etcd):
    """Returns the number of calls of each method that etcd has answered."""
    text = httpx.get(etcd.url + "/metrics").text
    found = {}
    for method, count in re.findall(r'^grpc_server_handled_total{.*grpc_method="(\w+)".*} (\S+)$', text, re.MULTILINE):
        found[method] = found.get(method, 0) + float(count)
    return found


def wait_until_at_rest(etcd):
    """Waits until the members make at most 3 transactions and 11 reads of the revision while they renew their leases 15
    times. The members then make about 8 reads of the revision. If the followers skipped none, there would be about 16.
    A member makes a transaction for a complete read, and after a slow read. If a member periodically read everything or
    checked its keys, there would be more transactions."""

    def is_at_rest():
        before = calls(etcd)
        renewals = before["LeaseKeepAlive"] + 15
        wait_until(lambda: calls(etcd)["LeaseKeepAlive"] >= renewals, "renewals of leases")
        after = calls(etcd)
        made = {method: after[method] - before[method] for method in before}
        return made["Txn"] <= 3 and made["Range"] <= 11 and made["LeaseGrant"] == 0

    wait_until(is_at_rest, "rest")


def delete(etcd, key):
    etcd.call("/v3/kv/deleterange", {"key": encode("/larder/1/" + key)})


def keys(etcd):
    """Returns all keys and values of the cluster."""
    found = etcd.call("/v3/kv/range", {"key": encode("/larder/1/demo/"), "range_end": encode("/larder/1/demo0")})
    return {decode(one["key"]): decode(one["value"]) for one in found["kvs"]}


def has_lease(etcd, key):
    return "lease" in etcd.call("/v3/kv/range", {"key": encode("/larder/1/" + key)})["kvs"][0]


def test_members_at_rest_read_nothing_and_find_each_change():
    # The counters cover the entire etcd, so other tests must not use this etcd.
    with Etcd() as etcd, Group(etcd, 3) as group:
        check(etcd, group)


def check(etcd, group):
    for node in group:
        wait_until(lambda: servers_of(listed(node)) == addresses(group), "all servers in the list")
    wait_until_at_rest(etcd)
    rest = keys(etcd)
    # The settings of the group, which operators change.
    for change, ack in ((lambda: etcd.overwrite("demo/settings/0", '{"ack":"writes"}'), "writes"),
                        (lambda: delete(etcd, "demo/settings/0"), "deletes")):  # fmt: skip
        change()
        wait_until(lambda: all(node.seen()["ack"] == ack for node in group), f"--ack {ack}")
    # The shard map: a planned move, and its end.
    shown = rest["/larder/1/demo/map"]
    etcd.overwrite("demo/map", shown.replace('"moves":{}', '"moves":{"1":"0-9"}'))
    wait_until(lambda: all(node.seen()["slots_moving"] == "10" for node in group), "a planned move")
    etcd.overwrite("demo/map", shown)
    wait_until(lambda: all(node.seen()["slots_moving"] == "0" for node in group), "no planned move")
    # The members repair deleted keys.
    for name in ("live/0/n1", "nodes/0/n2", "map", "discovery"):
        wait_until_at_rest(etcd)
        delete(etcd, f"demo/{name}")
        wait_until(lambda: f"/larder/1/demo/{name}" in keys(etcd), f"{name} in etcd")
    # A member also repairs a key that has the right value without its lease.
    wait_until_at_rest(etcd)
    etcd.overwrite("demo/live/0/n1", rest["/larder/1/demo/live/0/n1"])
    wait_until(lambda: has_lease(etcd, "demo/live/0/n1"), "the lease of n1")
    wait_until_at_rest(etcd)
    assert keys(etcd).keys() == rest.keys()
