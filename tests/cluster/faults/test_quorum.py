"""A group with three etcd members: loss of one member, of the etcd leader, and of the quorum."""

import subprocess
import tempfile
import time

import httpx
import pytest

from group import TMPFS, Client, Group, client, no_leader, wait_for_same_keys
from server import TIMEOUT_SECS, free_ports, wait_until

pytestmark = pytest.mark.larder


class Etcds:
    """An etcd cluster of three members, for a `with` block."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="larder-etcds-", dir=TMPFS)
        self.processes = {}
        for _ in range(20):
            self.clients, self.peers = ([f"http://127.0.0.1:{port}" for port in free_ports(3)] for _ in range(2))
            if all(self.start(number) for number in range(3)) and self.is_healthy():
                break
            self.stop()
        else:
            raise AssertionError("three etcds do not start")
        self.url = ",".join(self.clients)

    def start(self, number):
        """Starts a member, with its data if it ran before. Returns False if it exits at once, for example because its
        ports are in use."""
        url, peer = self.clients[number], self.peers[number]
        members = ",".join(f"e{other}={address}" for other, address in enumerate(self.peers))
        command = [
            "etcd", "--name", f"e{number}", "--data-dir", f"{self.dir.name}/{url.rsplit(':')[-1]}",
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", members,
            # The times are twice the defaults, because other load on the machine delays heartbeats.
            "--election-timeout", "2000", "--heartbeat-interval", "200",
        ]  # fmt: skip
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes[number] = subprocess.Popen(command, **quiet)
        time.sleep(0.1)
        return self.processes[number].poll() is None

    def is_healthy(self):
        deadline = time.monotonic() + TIMEOUT_SECS
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self.processes.values()):
                return False
            try:
                if all(httpx.get(url + "/health").json().get("health") == "true" for url in self.clients):
                    return True
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        return False

    def leader(self):
        """Returns the number of the etcd leader."""
        for number, url in enumerate(self.clients):
            seen = httpx.post(url + "/v3/maintenance/status", json={}).json()
            if seen["leader"] == seen["header"]["member_id"]:
                return number
        raise AssertionError("no etcd leads")

    def kill(self, number):
        self.processes[number].kill()
        self.processes[number].wait()

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.dir.cleanup()


def test_elections_work_without_one_etcd_member():
    with Etcds() as etcds, Group(etcds, 3) as group:
        lost = etcds.leader()
        with Client(group.leader(), "a") as a, Client(group.followers()[0], "b") as b:
            etcds.kill(lost)
            time.sleep(5)
        assert a.early_faults == [] and b.early_faults == []
        leader, followers = group.leader(), group.followers()
        assert client(leader).set("kept", "1")
        wait_for_same_keys(group)
        group.kill(leader)
        wait_until(lambda: any(node.leads() for node in followers), "another leader")
        assert client(followers[0]).get("kept") == b"1"
        assert etcds.start(lost)
        group.start(leader.name)
        group.wait_until_in_sync()


def test_a_group_without_an_etcd_quorum_keeps_its_leader():
    with Etcds() as etcds, Group(etcds, 3) as group:
        leader, followers = group.leader(), group.followers()
        assert client(leader).set("kept", "1")
        wait_for_same_keys(group)
        with Client(leader, "a") as a, Client(followers[0], "b") as b:
            etcds.kill(0)
            etcds.kill(1)
            # Leave etcd without a quorum for much longer than a lease lasts, and for much longer than a leader answers
            # without confirmation.
            time.sleep(10)
        assert a.early_faults == [] and b.early_faults == []
        group.kill(leader)
        wait_until(lambda: no_leader(followers[0]), "requests are refused")
        time.sleep(3)
        assert all(no_leader(node) for node in followers), "no node may lead without a quorum"
        assert etcds.start(1)
        wait_until(lambda: any(node.leads() for node in followers), "another leader")
        assert client(followers[0]).get("kept") == b"1"
