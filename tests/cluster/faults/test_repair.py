"""Delta sync: nodes follow a new leader without a full sync, and then have the same items as the leader."""

import signal
import threading
import time

import pytest

from group import Group, client, wait_for_same_keys
from replicas import ask, items, keys
from server import wait_until

pytestmark = pytest.mark.larder

KEYS = 400


class Load:
    """Pipelines stores and deletes through one node until the node stops answering."""

    def __init__(self, node, seed):
        self.sock = node.connect()
        self.seed, self.rounds = seed, 0
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            while not self.end.is_set():
                self.rounds += 1
                requests = []
                for number in range(50):
                    key = (self.rounds * 37 + number * self.seed) % KEYS
                    value = f"{self.seed}-{self.rounds}-{number}"
                    requests += [f"set k{key} 0 0 {len(value)}\r\n{value}\r\n", f"delete k{(key + 7) % KEYS}\r\n"]
                self.sock.sendall("".join(requests).encode())
                answers = 0
                while answers < 100:
                    said = self.sock.recv(65536)
                    if not said:
                        return
                    answers += said.count(b"\r\n")
                # The pause limits the load, because the journals must hold all changes until all nodes have found the
                # next leader.
                time.sleep(0.01)
        except OSError:
            pass

    def stop(self):
        self.end.set()
        self.thread.join()
        self.sock.close()


def copies(node):
    """Returns the numbers of full syncs and of delta syncs that a node has received."""
    seen = node.stats("replication")
    return int(seen["full_syncs_received"]), int(seen["delta_syncs_received"])


def check(group, repaired, before):
    """Checks that a node has received a delta sync and no full sync since `before`. Then kills the leader, and checks
    that the node leads with the leader's items."""
    copied, repairs = before
    # After an election, the record lists members that were in sync before it, even before their delta sync.
    wait_until(lambda: copies(repaired)[1] > repairs, "a delta sync")
    wait_for_same_keys(group)
    assert copies(repaired)[0] == copied
    leader = group.leader()
    shown = items(leader, keys(leader))
    assert len(shown) > 20
    group.kill(leader)
    wait_until(repaired.leads, "the repaired node leads")
    assert items(repaired, keys(repaired)) == shown


@pytest.mark.parametrize("ack", ["none", "writes"])
def test_the_other_node_needs_no_full_sync_when_a_leader_is_killed(etcd, ack):
    with Group(etcd, 3, "--cluster", f"repair-{ack}", "--ack", ack) as group:
        leader, others = group.leader(), group.followers()
        before = {node.name: copies(node) for node in others}
        loads = [Load(node, seed) for seed, node in enumerate((leader, leader, *others), 1)]
        wait_until(lambda: all(load.rounds > 20 for load in loads), "requests")
        group.kill(leader)
        group.wait_until_in_sync()
        for load in loads:
            load.stop()
        (other,) = group.followers()
        check(group, other, before[other.name])


def test_a_replaced_leader_needs_no_full_sync(etcd):
    with Group(etcd, 2, "--cluster", "replaced", "--ack", "none") as group:
        old, new = group.leader(), group.followers()[0]
        before = copies(old)
        loads = [Load(old, 1), Load(old, 3)]
        wait_until(lambda: all(load.rounds > 20 for load in loads), "requests")
        old.signal(signal.SIGSTOP)
        wait_until(new.leads, "another leader")
        loads.append(Load(new, 5))
        wait_until(lambda: loads[-1].rounds > 20, "requests to the next leader")
        old.signal(signal.SIGCONT)
        group.wait_until_in_sync()
        for load in loads:
            load.stop()
        check(group, old, before)


def test_a_delayed_flush_of_a_lost_leader_is_dropped(etcd):
    """When the old leader resumes, it has a delayed flush that the new leader has not received."""
    with Group(etcd, 2, "--cluster", "planned") as group:
        old, new = group.leader(), group.followers()[0]
        assert ask(old, b"flush_all 6\r\n", b"\r\n") == b"OK\r\n"
        old.signal(signal.SIGSTOP)
        wait_until(new.leads, "another leader")
        assert client(new).set("kept", "1")
        old.signal(signal.SIGCONT)
        group.wait_until_in_sync()
        wait_for_same_keys(group)
        seconds = int(new.stats()["time"])
        wait_until(lambda: int(new.stats()["time"]) > seconds + 7, "the time of the flush")
        wait_for_same_keys(group)
        group.kill(new)
        wait_until(old.leads, "the old leader leads again")
        assert client(old).get("kept") == b"1"
