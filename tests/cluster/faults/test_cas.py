"""CAS values of groups: they stay below 2^32, and no leader assigns a value to a key that another leader has already
assigned to it."""

import json
import signal
from base64 import b64decode, b64encode

import httpx
import pytest
from pymemcache.exceptions import MemcacheServerError

from group import Etcd, Group, client
from replicas import ask, keys
from server import wait_until
from test_many_groups import cluster, larder, owned

pytestmark = pytest.mark.larder

# All CAS values are below this limit, because some clients store only 32 bits.
CAS_32_BITS = 1 << 32
# The length of a leader's first reservation: CAS_RANGE_LEN_MIN in crates/larder-replica/src/group.rs.
RANGE_LEN = 1 << 20


def key_of(cluster):
    return f"/larder/1/{cluster}/groups/0"


def record(etcd, cluster):
    """Returns the record of group 0 in etcd, with its revision."""
    key = b64encode(key_of(cluster).encode()).decode()
    answer = httpx.post(etcd.url + "/v3/kv/range", json={"key": key}).json()["kvs"][0]
    return json.loads(b64decode(answer["value"])), int(answer["mod_revision"])


def swap_record(etcd, cluster, change):
    """Replaces fields of the record. If a node replaces the record at the same time, retries."""
    key, is_done = b64encode(key_of(cluster).encode()).decode(), False
    while not is_done:
        current, revision = record(etcd, cluster)
        value = b64encode(json.dumps(current | change).encode()).decode()
        swap = {
            "compare": [{"key": key, "target": "MOD", "mod_revision": str(revision)}],
            "success": [{"request_put": {"key": key, "value": value}}],
        }
        is_done = httpx.post(etcd.url + "/v3/kv/txn", json=swap).json().get("succeeded", False)


def cas_of(node, key):
    value, cas = client(node).gets(key)
    assert value is not None
    return int(cas)


class Given:
    """The CAS values that keys have had. `store` stores each key again through a node, and checks that the key's new
    CAS value was not used before."""

    def __init__(self):
        self.values = {f"k{number}": set() for number in range(20)}

    def store(self, node):
        at = client(node)
        for key, values in self.values.items():
            # Deletes the key before every second store. The new item then has no previous CAS value to exceed.
            if len(values) % 2:
                at.delete(key)
            assert at.set(key, "v")
            cas = cas_of(node, key)
            assert 0 < cas < CAS_32_BITS
            assert cas not in values, f"{key} has the CAS value {cas} again"
            values.add(cas)


def write(node, count):
    """Stores an item `count` times in pipelines, and returns the number of refused stores."""
    refused = 0
    with node.connect() as sock:
        for start in range(0, count, 5000):
            batch = min(5000, count - start)
            # A quiet store gets a reply only if it fails.
            sock.sendall(b"ms many 1 q\r\nx\r\n" * batch + b"mn\r\n")
            answer = b""
            while not answer.endswith(b"MN\r\n"):
                piece = sock.recv(1 << 16)
                assert piece, answer[-200:]
                answer += piece
            lines = answer.split(b"\r\n")[:-2]
            # On a busy machine, a leader without etcd may miss acknowledgements, and then does not answer.
            assert set(lines) <= {b"SERVER_ERROR no CAS values left", b"SERVER_ERROR no leader"}, lines[:3]
            refused += len(lines)
    return refused


def test_values_stay_low_and_unique_across_leaders(etcd):
    with Group(etcd, 3, "--cluster", "low", "--ack", "writes") as group:
        given = Given()
        for round in range(3):
            for node in group:
                given.store(node)
            # A compare-and-swap starts before the leader change and ends after it.
            key, node = f"cycle{round}", group.followers()[0]
            assert client(node).set(key, "old")
            cas = cas_of(node, key)
            if round == 1:
                larder(etcd, "transfer-leadership", "low")
            else:
                killed = group.leader()
                group.kill(killed)
                group.start(killed.name)
            group.wait_until_in_sync()
            node = group.followers()[0]
            assert cas_of(node, key) == cas
            assert client(node).cas(key, "new", str(cas)) is True
            assert client(node).cas(key, "newer", str(cas)) is False
            assert cas_of(node, key) > cas
            given.store(node)
        # Each leader may skip at most one reservation.
        last = record(etcd, "low")[0]
        assert last["cas"][1] <= (last["epoch"] + 1) * RANGE_LEN, last


def test_a_transfer_continues_at_the_counter(etcd):
    with Group(etcd, 2, "--cluster", "counter") as group:
        for _ in range(4):
            assert client(group.leader()).set("a", "1")
            before, leader = cas_of(group.leader(), "a"), group.leader()
            larder(etcd, "transfer-leadership", "counter")
            wait_until(lambda: group.leader() is not leader, "the next leader")
            group.wait_until_in_sync()
            assert client(group.leader()).set("a", "2")
            # Allow a gap, because threads take values in blocks of eight.
            assert before < cas_of(group.leader(), "a") < before + 1000, "an election would skip more"


def test_values_chosen_by_clients_use_up_nothing(etcd):
    with Group(etcd, 2, "--cluster", "chosen") as group:
        leader = group.leader()
        chosen = (1 << 60, CAS_32_BITS - 9, 40_000_000, (1 << 64) - 1)
        for number, cas in enumerate(chosen):
            assert ask(leader, b"ms c%d 1 E%d\r\nx\r\n" % (number, cas), b"\r\n") == b"HD\r\n"
            wait_until(lambda: cas_of(group.followers()[0], f"c{number}") == cas, "the same CAS")
        for number in range(len(chosen)):
            assert client(leader).set(f"c{number}", "y")
            assert cas_of(leader, f"c{number}") < RANGE_LEN


def test_without_etcd_the_members_extend_the_range():
    """A leader without etcd uses up its reservation while a member acknowledges nothing. From then on, stores fail.
    When the member acknowledges again, the leader continues with further values, and a member that leads later starts
    above them."""
    options = ("--cluster", "extend", "--doubt", "serve", "--ack", "none")
    with Etcd() as etcd, Group(etcd, 3, *options) as group:
        leader, paused = group.leader(), group.followers()[0]
        assert client(leader).set("a", "1")
        _, to = record(etcd, "extend")[0]["cas"]
        etcd.kill()
        paused.signal(signal.SIGSTOP)
        wait_until(lambda: write(leader, 100_000) > 0, "the end of the values")
        wait_until(lambda: "used up its CAS values" in leader.output(), "the reason in the log")
        assert ask(leader, b"set b 0 0 1\r\nx\r\n", b"\r\n") == b"SERVER_ERROR no CAS values left\r\n"
        # Other requests, and stores with a CAS value that the client chooses, need no value of the reservation.
        assert client(leader).get("a") == b"1"
        assert ask(leader, b"ms b 1 E7\r\nx\r\n", b"\r\n") == b"HD\r\n"
        assert client(leader).delete("b")
        paused.signal(signal.SIGCONT)
        wait_until(lambda: write(leader, 1) == 0, "an acknowledged end")
        assert client(leader).set("a", "2")
        last = cas_of(leader, "a")
        assert to <= last < CAS_32_BITS
        etcd.start()
        group.wait_until_in_sync()
        wait_until(lambda: record(etcd, "extend")[0]["cas"][1] > last, "the end in the record")
        group.kill(leader)
        assert client(group.leader()).set("a", "3")
        assert cas_of(group.leader(), "a") > last


def test_a_member_that_has_acknowledged_an_end_starts_above_it():
    """The leader draws values above the range in etcd's record, and is killed while etcd is down."""
    with Etcd() as etcd, Group(etcd, 3, "--cluster", "above") as group:
        leader = group.leader()
        assert client(leader).set("a", "1")
        _, to = record(etcd, "above")[0]["cas"]
        etcd.kill()

        def has_passed_the_end():
            try:
                return write(leader, 100_000) == 0 and client(leader).set("a", "1") and cas_of(leader, "a") > to
            except MemcacheServerError:
                # On a busy machine, a leader without etcd may miss acknowledgements, and then does not answer.
                return False

        wait_until(has_passed_the_end, "values above the record")
        last = cas_of(leader, "a")
        wait_until(lambda: all(keys(node) == keys(leader) for node in group), "the same keys")
        group.kill(leader)
        etcd.start()
        assert client(group.leader()).set("a", "2")
        assert record(etcd, "above")[0]["cas"][0] > last > to
        assert last < cas_of(group.leader(), "a") < CAS_32_BITS


def test_slots_keep_unique_values_when_they_come_back(etcd):
    with cluster(etcd, "casmoves", 2, 2) as (first, second):
        given = Given()
        nodes = [*first, *second]
        # Group 1 has drawn fewer values than group 0.
        assert write(first.leader(), 30_000) == 0
        for _ in range(2):
            for task in (["move", "casmoves", "--to", "1", "--count", "4095"], ["drain", "casmoves", "1"]):
                for node in nodes[:2]:
                    given.store(node)
                kept = {key: cas_of(nodes[0], key) for key in given.values}
                larder(etcd, *task)
                assert {key: cas_of(nodes[3], key) for key in given.values} == kept
                assert client(nodes[2]).cas("k1", "next", str(kept["k1"])) is True
                assert client(nodes[2]).cas("k1", "next", str(kept["k1"])) is False
                given.values["k1"].add(cas_of(nodes[2], "k1"))
                given.store(nodes[3])
        assert owned(etcd, "casmoves")["0"] == 4096


def test_epochs_have_31_bits(etcd):
    with Group(etcd, 2, "--cluster", "epochs") as group:

        def leads_in(epoch):
            return any(node.leads() and node.seen()["epoch"] == str(epoch) for node in group)

        assert client(group.leader()).set("a", "1")
        given = Given()
        given.store(group.leader())
        for epoch in (32_766, 32_767, 32_768, (1 << 31) - 3):
            swap_record(etcd, "epochs", {"epoch": epoch})
            wait_until(lambda: leads_in(epoch), "the epoch")
            group.wait_until_in_sync()
            given.store(group.followers()[0])
            larder(etcd, "transfer-leadership", "epochs")
            wait_until(lambda: leads_in(epoch + 1), "the next epoch")
            group.wait_until_in_sync()
            given.store(group.followers()[0])
        assert client(group.followers()[0]).get("a") == b"1"


@pytest.mark.parametrize("cas", [[0, 9], [9, 8], "1-9", [1], [1, 1 << 60], None])
def test_a_malformed_range_is_a_malformed_record(etcd, cas):
    name = f"malformed{[[0, 9], [9, 8], '1-9', [1], [1, 1 << 60], None].index(cas)}"
    with Group(etcd, 1, "--cluster", name) as group:
        node = group.leader()
        swap_record(etcd, name, {"cas": cas})
        wait_until(lambda: "was malformed: it has its earlier value again" in node.output(), "the reason in the log")
        wait_until(node.leads, "the leader")
        assert client(node).set("a", "1")
