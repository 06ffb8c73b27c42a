"""`--ack`: confirmed changes survive the loss of a leader."""

import random
import signal
import socket
import threading
import time
from contextlib import ExitStack

import httpx
import pymemcache
import pytest

from group import PAUSE_SECS, Etcd, Group, client, larder
from server import wait_until

pytestmark = pytest.mark.larder


class Recorder:
    """A client that changes its own keys through any node. For each key, it records the last confirmed value (`None`
    after a delete) and the values of later, unconfirmed changes."""

    def __init__(self, group, name, deletes_only):
        self.group, self.name, self.deletes_only = group, name, deletes_only
        self.told, self.asked = {}, {}
        self.answers = 0
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        draw, number = random.Random(self.name), 0
        while not self.end.is_set():
            try:
                connected = client(draw.choice(list(self.group)))
                for _ in range(20):
                    number += 1
                    time.sleep(PAUSE_SECS)
                    self._change(connected, f"{self.name}:{draw.randrange(30)}", number, draw)
            except (OSError, pymemcache.exceptions.MemcacheError, IndexError):
                # The last change may or may not have been executed, so it is not recorded as confirmed.
                time.sleep(0.01)

    def _change(self, connected, key, number, draw):
        value = None if draw.randrange(3) == 0 else b"%d" % number
        self.asked.setdefault(key, []).append(value)
        if value is None:
            connected.delete(key)
        else:
            connected.set(key, value)
        # With `deletes_only`, the reply to a set does not wait for acknowledgements. Such a set may be lost and is not
        # recorded as confirmed.
        if value is None or not self.deletes_only:
            self.told[key] = len(self.asked[key]) - 1
        self.answers += 1

    def check(self, node):
        """Checks that every key has its last confirmed value, or the value of a later, unconfirmed change."""
        with_all = client(node)
        for key, last in self.told.items():
            found, possible = with_all.get(key), self.asked[key][last:]
            assert found in possible, f"{key}: {found} is none of {possible}"

    def __enter__(self):
        self.thread.start()
        wait_until(lambda: self.answers > 20, "the first answers")
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()


@pytest.mark.parametrize("ack", ["deletes", "writes"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_confirmed_changes_survive(etcd, ack, how):
    with Group(etcd, 3, "--cluster", f"{ack}{how}", "--ack", ack) as group:
        recorders = [Recorder(group, f"c{number}", ack == "deletes") for number in range(4)]
        for _ in range(3):
            leader = group.wait_until_in_sync()
            for recorder in recorders:
                recorder.__enter__()
            try:
                if how == signal.SIGKILL:
                    group.kill(leader)
                    leader = group.leader()
                else:
                    del group.nodes[leader.name]
                    leader.signal(signal.SIGSTOP)
                    group.leader()
                    leader.signal(signal.SIGCONT)
                    group.nodes[leader.name] = leader
                time.sleep(0.3)
            finally:
                for recorder in recorders:
                    recorder.__exit__()
            for recorder in recorders:
                for node in group:
                    recorder.check(node)
                recorder.end.clear()
                recorder.thread = threading.Thread(target=recorder._run)
            for name in ("n1", "n2", "n3"):
                if name not in group.nodes:
                    group.start(name)
        assert any(int(node.seen()["held"]) > 0 for node in group)


def test_changes_wait_for_a_paused_member_until_it_leaves_the_sync(etcd):
    with Group(etcd, 3, "--cluster", "waits", "--ack", "writes") as group:
        leader, still = group.leader(), group.followers()[0]
        assert client(leader).set("a", "1")
        still.signal(signal.SIGSTOP)
        start_time = time.monotonic()
        assert client(leader).set("a", "2")
        # The reply waited until the leader had removed the paused member from the in-sync members in the group record.
        assert 0.3 < time.monotonic() - start_time < 5
        start_time = time.monotonic()
        for number in range(10):
            assert client(leader).set("a", str(number))
        assert time.monotonic() - start_time < 2
        assert still.name not in leader.seen()["in_sync"].split()
        still.signal(signal.SIGCONT)
        group.wait_until_in_sync()
        assert client(still).get("a") == b"9"


def test_a_change_without_acknowledgement_gets_no_answer():
    with Etcd() as own, Group(own, 2, "--ack", "writes", "--doubt", "serve", http=True, resp=True) as group:
        leader, follower = group.leader(), group.followers()[0]
        assert client(leader).set("a", "1")
        own.kill()
        follower.signal(signal.SIGSTOP)
        with leader.connect() as sock, leader.connect() as reader:
            sock.sendall(b"set a 0 0 1\r\n2\r\n")
            start_time = time.monotonic()

            def seen():
                reader.sendall(b"get a\r\n")
                return reader.recv(100) == b"VALUE a 0 1\r\n2\r\nEND\r\n"

            # The node answers lookups, even with unconfirmed values.
            wait_until(seen, "the new value")
            assert sock.recv(100) == b"", "the connection is closed without an answer"
            assert 3 < time.monotonic() - start_time < 20
        assert leader.seen()["lost"] == "1"
        answer = httpx.put(f"http://{leader.http_address}/v1/keys/b", content=b"1", timeout=30)
        assert answer.status_code == 504
        follower.signal(signal.SIGCONT)
        assert own.start()
        group.wait_until_in_sync()
        assert client(follower).set("a", "3")


def test_acknowledgements_need_no_timer(etcd):
    """A change waits for a network round trip, and not for a timer."""
    with Group(etcd, 3, "--cluster", "quick", "--ack", "writes") as group:
        for node in group:
            through = client(node)
            times = []
            for number in range(300):
                start_time = time.monotonic()
                assert through.set(f"k{number}", "1")
                times.append(time.monotonic() - start_time)
            # Other load on the machine delays some changes, but a timer would delay all of them.
            assert sorted(times)[30] < 0.02, node.name


def test_a_transfer_abandons_no_reply_that_waits(etcd):
    """Replies wait for a paused member until it is no longer in sync. A leadership transfer during this time does not
    abandon these replies."""
    with Group(etcd, 3, "--cluster", "heldreplies", "--ack", "writes") as group, ExitStack() as stack:
        leader, [paused, other] = group.leader(), group.followers()
        socks = [stack.enter_context(socket.create_connection((node.host, node.port), 20)) for node in (leader, other)]
        for sock in socks:
            sock.sendall(b"mg a v\r\n")
            assert sock.recv(100) == b"EN\r\n"
        paused.signal(signal.SIGSTOP)
        held = int(leader.seen()["held"])
        for sock in socks:
            sock.sendall(b"set a 0 0 1\r\n1\r\n")
        wait_until(lambda: int(leader.seen()["held"]) == held + len(socks), "replies that wait")
        larder(etcd, "transfer-leadership", "heldreplies")
        assert [sock.recv(100) for sock in socks] == [b"STORED\r\n"] * len(socks)
        wait_until(other.leads, "the next leader")
        assert client(other).get("a") == b"1"
        paused.signal(signal.SIGCONT)
