"""Groups on partitioned networks. Each node, and etcd, has its own network namespace. The scenarios cut links in one or
both directions. `python cuts.py SCENARIO` must run in a separate network namespace (`unshare --net`).

`test_cuts.py` runs each scenario.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS), str(TESTS / "replication"), str(TESTS / "cluster"), str(TESTS / "cluster" / "faults")]

from group import TMPFS, Client, client  # noqa: E402
from server import LARDERD, wait_until  # noqa: E402
from test_acks import Recorder  # noqa: E402

NET = "10.77.0."
HUB, ETCD = 254, 10
PORT, MEMBERS, ETCD_PORT = 11211, 11311, 2379
SLOTS = 4096
# Maximum time that clients may wait for a reply. docs/failover.md promises 3 seconds; the rest allows for other load on
# the machine.
SILENT_SECS = 8
# After a cut of `LEASE_EXPIRY_SECS`, TCP retransmits unacknowledged bytes within this time.
RETRANSMITTED_SECS = 10
# Longer than the lease of a node at etcd (2 s) and the delay after which another node stands for election.
LEASE_EXPIRY_SECS = 4


def await_answers(*clients):
    """Waits until each client has received more than 50 further replies."""
    counts = [len(one.answers) for one in clients]
    wait_until(lambda: all(len(one.answers) > count + 50 for one, count in zip(clients, counts)), "answers")


def has_namespaces():
    """Returns whether this process may create network namespaces, which requires root."""
    try:
        return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def ip(*words, pid=None):
    """Runs `ip` in the namespace of a process or, without `pid`, in that of this process."""
    inside = ["nsenter", "-t", str(pid), "-n"] if pid else []
    subprocess.run([*inside, "ip", *words], check=True)


def tc(*words):
    subprocess.run(["tc", "qdisc", *words], check=True)


class Machine:
    """A process in its own network namespace, connected to the bridge."""

    def __init__(self, number, command, log):
        self.number, self.host, self.link = number, f"{NET}{number}", f"v{number}"
        setup = f"read go; ip link set lo up; ip addr add {self.host}/24 dev eth0; ip link set eth0 up; exec \"$@\""
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", setup, "sh", *map(str, command)],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
            )  # fmt: skip
        self.pid = self.process.pid
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{self.pid}/ns/net") != own, "a namespace")
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        ip("link", "set", self.link, "master", "hub")
        ip("link", "set", self.link, "up")
        self.process.stdin.write(b"go\n")
        self.process.stdin.close()

    def cut(self):
        """Cuts the link in both directions."""
        ip("link", "set", self.link, "down")

    def mend(self):
        ip("link", "set", self.link, "up")

    def silence(self, other):
        """Cuts the link from this machine to another machine, in this direction only."""
        ip("route", "add", "blackhole", f"{other.host}/32", pid=self.pid)

    def slow_down(self):
        """Limits the link to this machine to a megabyte per second."""
        tc("add", "dev", self.link, "root", "tbf", "rate", "8mbit", "burst", "64kb", "latency", "400ms")

    def speed_up(self):
        tc("del", "dev", self.link, "root")

    def unsilence(self, other):
        ip("route", "del", "blackhole", f"{other.host}/32", pid=self.pid)

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()


class Node(Machine):
    """A member of a group. Clients connect from the namespace of the bridge."""

    port = PORT

    def __init__(self, number, folder, *options):
        self.name = f"n{number}"
        listen = f"{NET}{number}"
        command = [
            LARDERD, "-u", "root", "-l", listen, "-p", PORT, "-U", 0, "-m", 64, "-v",
            "--cluster", "demo", "--node", self.name, "--etcd", f"http://{NET}{ETCD}:{ETCD_PORT}",
            "--replicate-on", f"{listen}:{MEMBERS}", "--cluster-secret", f"{folder}/secret", *options,
        ]  # fmt: skip
        super().__init__(number, command, f"{folder}/{self.name}.log")

    def stats(self, topic):
        with socket.create_connection((self.host, PORT), 3) as sock, sock.makefile("rb") as replies:
            sock.sendall(f"stats {topic}\r\n".encode())
            lines = iter(replies.readline, b"END\r\n")
            return {words[1]: " ".join(words[2:]) for words in (line.decode().split() for line in lines)}

    def seen(self):
        try:
            return self.stats("cluster")
        except OSError:
            return {"role": "away", "serving": "0", "in_sync": ""}

    def leads(self):
        return self.seen()["serving"] == "1"


class Net:
    """The bridge, etcd and a group of three nodes, for a `with` block."""

    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="larder-net-", dir=TMPFS)
        folder = self.dir.name
        Path(f"{folder}/secret").write_text("a secret of the cluster\n")
        ip("link", "set", "lo", "up")
        ip("link", "add", "hub", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        ip("addr", "add", f"{NET}{HUB}/24", "dev", "hub")
        ip("link", "set", "hub", "up")
        url = f"http://{NET}{ETCD}:{ETCD_PORT}"
        command = ["etcd", "--data-dir", f"{folder}/etcd", "--listen-client-urls", url, "--advertise-client-urls", url]
        self.etcd = Machine(ETCD, command, f"{folder}/etcd.log")
        self.nodes = self.start(folder)
        self.wait_until_in_sync()
        return self

    def start(self, folder):
        return [Node(number, folder, *self.options) for number in (1, 2, 3)]

    def __exit__(self, kind, *_):
        for machine in [*self.nodes, self.etcd]:
            machine.end()
        if kind:
            for log in sorted(Path(self.dir.name).glob("n*.log")):
                print(f"-- {log.name}\n{log.read_text(errors='replace')}", file=sys.stderr)
        self.dir.cleanup()

    def __iter__(self):
        return iter(list(self.nodes))

    def wait_until_in_sync(self):
        wait_until(lambda: all(len(node.seen()["in_sync"].split()) == 3 for node in self), "all in sync")
        return self.leader()

    def leader(self):
        wait_until(lambda: any(node.leads() for node in self), "a leader")
        return next(node for node in self if node.leads())

    def others(self, leader):
        return [node for node in self if node is not leader]


class TwoGroups(Net):
    """The bridge, etcd and two groups of two nodes."""

    def start(self, folder):
        """Starts the first group before the second, so that the first group owns all slots."""
        self.groups = []
        for group, numbers in ((0, (1, 2)), (1, (3, 4))):
            self.groups.append([Node(number, folder, "--group", group, *self.options) for number in numbers])
            self.leader(group)
        return [node for group in self.groups for node in group]

    def wait_until_in_sync(self):
        wait_until(lambda: all(len(node.seen()["in_sync"].split()) == 2 for node in self), "all in sync")

    def leader(self, group):
        wait_until(lambda: any(node.leads() for node in self.groups[group]), "a leader")
        return next(node for node in self.groups[group] if node.leads())

    def larder(self, task, *words):
        command = [LARDERD.with_name("larder"), "cluster", task, "--cluster", "demo", "--etcd", f"http://{self.etcd.host}:{ETCD_PORT}"]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_move(self):
        self.larder("move", "--to", "1", "--no-wait")

    def moved(self):
        """Returns the number of slots that the second group owns."""
        owned = self.larder("status").partition("group 1:")[2].partition("  slots ")[2].partition("\n")[0]
        return int(owned.rpartition("(")[2].rstrip(")") or 0)


class Recorders:
    """Recorders that use only the given nodes, for a `with` block."""

    def __init__(self, nodes, count=3):
        self.recorders = [Recorder(nodes, f"r{number}", False) for number in range(count)]

    def __enter__(self):
        for recorder in self.recorders:
            recorder.__enter__()
        return self

    def __exit__(self, *exc):
        for recorder in self.recorders:
            recorder.__exit__(*exc)

    def check(self, nodes):
        for recorder in self.recorders:
            for node in nodes:
                recorder.check(node)


def a_partitioned_leader_is_replaced():
    with Net("--ack", "writes") as net:
        leader = net.leader()
        others = net.others(leader)
        with Recorders(net.nodes) as recorded, Client(others[0], "a") as a, Client(others[1], "b") as b:
            leader.cut()
            wait_until(lambda: any(node.leads() for node in others), "another leader")
            await_answers(a, b)
            leader.mend()
            await_answers(a, b)
        assert max(a.longest_gap(), b.longest_gap()) < SILENT_SECS, (a.longest_gap(), b.longest_gap())
        print(f"the longest waits: {a.longest_gap():.2f} and {b.longest_gap():.2f} s")
        net.wait_until_in_sync()
        recorded.check(net)


def a_leader_without_etcd_continues():
    with Net() as net:
        leader = net.leader()
        with Client(net.others(leader)[0], "a") as a, Client(leader, "b") as b:
            leader.silence(net.etcd)
            time.sleep(LEASE_EXPIRY_SECS)
            assert leader.leads()
            leader.unsilence(net.etcd)
            await_answers(a, b)
        assert not a.early_faults and not b.early_faults
        assert max(a.longest_gap(), b.longest_gap()) < 2


def a_leader_that_can_only_receive_is_replaced():
    with Net("--ack", "writes") as net:
        leader = net.leader()
        others = net.others(leader)
        with Recorders(others) as recorded, Client(others[0], "a") as a, Client(others[1], "b") as b:
            for machine in [*others, net.etcd]:
                leader.silence(machine)
            wait_until(lambda: any(node.leads() for node in others), "another leader")
            await_answers(a, b)
            for machine in [*others, net.etcd]:
                leader.unsilence(machine)
            await_answers(a, b)
        assert max(a.longest_gap(), b.longest_gap()) < SILENT_SECS, (a.longest_gap(), b.longest_gap())
        net.wait_until_in_sync()
        recorded.check(net)


def an_unreachable_follower_leaves_the_sync():
    with Net("--ack", "writes") as net:
        leader = net.leader()
        left, other = net.others(leader)
        with Recorders([leader, other]) as recorded, Client(other, "a") as a:
            leader.silence(left)
            wait_until(lambda: left.name not in leader.seen()["in_sync"].split(), "one member less")
            time.sleep(LEASE_EXPIRY_SECS)
            assert leader.leads(), "no other node became leader"
            leader.unsilence(left)
        assert a.longest_gap() < SILENT_SECS
        net.wait_until_in_sync()
        recorded.check(net)


def two_successive_partitions():
    """Partitions first the followers and then the leader. At the second partition, only the leader is in sync, so no
    other node may lead."""
    with Net("--ack", "writes") as net:
        leader = net.leader()
        first, second = net.others(leader)
        with Recorders(net.nodes) as recorded:
            first.cut()
            second.cut()
            wait_until(lambda: leader.seen()["in_sync"] == leader.name, "only the leader in sync")
            client(leader).set("alone", "1")
            leader.cut()
            first.mend()
            second.mend()
            time.sleep(LEASE_EXPIRY_SECS)
            assert not any(node.leads() for node in (first, second)), "they lack items"
            leader.mend()
        net.wait_until_in_sync()
        assert client(first).get("alone") == b"1"
        recorded.check(net)


def a_follower_behind_a_slow_link_leaves_the_sync():
    """Sends a load that exceeds the capacity of the link. Deletes wait for the follower until it is no longer in
    sync."""
    with Net() as net:
        leader = net.leader()
        slow, _ = net.others(leader)
        slow.slow_down()
        value, done = b"v" * 60_000, threading.Event()

        def store():
            with socket.create_connection((leader.host, PORT), 30) as sock:
                number = 0
                while not done.is_set():
                    number += 1
                    sock.sendall(b"set k%d 0 0 %d noreply\r\n%s\r\n" % (number % 500, len(value), value))
                    time.sleep(0.01)

        load = threading.Thread(target=store)
        load.start()
        waits, end = [], time.monotonic() + 10
        try:
            with socket.create_connection((leader.host, PORT), 30) as sock:
                while time.monotonic() < end:
                    start_time = time.monotonic()
                    sock.sendall(b"delete nothing\r\n")
                    assert sock.recv(100) == b"NOT_FOUND\r\n", "answers are given"
                    waits.append(time.monotonic() - start_time)
                    time.sleep(0.01)
        finally:
            done.set()
            load.join()
        assert max(waits) < SILENT_SECS / 2, max(waits)
        assert slow.name not in leader.seen()["in_sync"].split()
        print(f"the longest wait: {max(waits):.2f} s, the median {sorted(waits)[len(waits) // 2]:.4f} s")
        slow.speed_up()
        net.wait_until_in_sync()


@contextmanager
def slots_move(unused=None):
    """Provides two groups for a `with` block. The block starts a migration of half of the slots from the first to the
    second group, and cuts links. Afterwards, the function checks that the slots have moved, that each node finds all
    items, and that no confirmed change is lost. Clients do not use the leader of the group `unused`."""
    with TwoGroups("--ack", "writes") as net:
        cut = [] if unused is None else [net.leader(unused)]
        used = [node for node in net if node not in cut]
        many = {f"k{number}": b"v%d" % number * 200 for number in range(4000)}
        assert client(used[0]).set_many(many) == []
        with Recorders(used) as recorded:
            yield net
            wait_until(lambda: net.moved() == SLOTS // 2, "half of the slots")
        net.wait_until_in_sync()
        for node in net:
            assert client(node).get_many(many) == many, node.name
        recorded.check(net)


def the_exporting_leader_is_partitioned():
    with slots_move() as net:
        partition_during_move(net, net.leader(0))


def the_importing_leader_is_partitioned():
    with slots_move() as net:
        partition_during_move(net, net.leader(1))


def partition_during_move(net, leader):
    net.start_move()
    leader.cut()
    others = [node for group in net.groups if leader in group for node in group if node is not leader]
    wait_until(lambda: any(node.leads() for node in others), "another leader")
    leader.mend()


def the_importing_leader_can_not_reach_the_exporting_one():
    """Checks that both groups keep their leaders, and that slots move once the importing leader can send again."""
    with slots_move(unused=1) as net:
        giver, taker = net.leader(0), net.leader(1)
        taker.silence(giver)
        net.start_move()
        time.sleep(LEASE_EXPIRY_SECS)
        assert net.moved() == 0
        assert giver.leads() and taker.leads()
        taker.unsilence(giver)


def the_importing_leader_can_not_reach_etcd():
    """Checks that both groups keep their leaders, and that the shard map does not change while the link is cut."""
    with slots_move() as net:
        giver, taker = net.leader(0), net.leader(1)
        net.start_move()
        taker.silence(net.etcd)
        time.sleep(2)
        before = net.moved()
        time.sleep(3)
        assert net.moved() == before
        assert giver.leads() and taker.leads()
        taker.unsilence(net.etcd)


def ask_within(sock, request, secs):
    """Returns the reply to a request, or empty bytes if the connection is closed."""
    sock.settimeout(secs)
    sock.sendall(request)
    try:
        return sock.recv(1000)
    except ConnectionError:
        return b""


def failed_changes_are_not_made_later(*directions):
    """Cuts a follower from the leader, so that changes through the follower fail. Another client then makes a change,
    and the cut ends. After that, the failed changes must have no effect."""
    with Net() as net:
        leader = net.leader()
        cut, other = net.others(leader)
        client(other).set_many({"old": "1", "counter": "1", "gone": "1"})
        requests = [b"set old 0 0 5\r\nstale\r\n", b"incr counter 1\r\n", b"append gone 0 0 1\r\nx\r\n", b"flush_all\r\n"]
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(socket.create_connection((cut.host, PORT), 30)) for _ in requests]
            for sock in socks:
                sock.sendall(b"mg old v\r\n")
                assert sock.recv(100).startswith(b"VA")
            for source, target in directions:
                {"cut": cut, "leader": leader}[source].silence({"cut": cut, "leader": leader}[target])
            threads, replies = [], {}
            for sock, request in zip(socks, requests):
                work = lambda sock=sock, request=request: replies.update({request: ask_within(sock, request, SILENT_SECS)})
                threads.append(threading.Thread(target=work))
                threads[-1].start()
            for thread in threads:
                thread.join()
            assert all(reply == b"" or reply.startswith(b"SERVER_ERROR") for reply in replies.values()), replies
            assert len(replies) == len(requests)
            # Wait until the system has discarded the bytes that it could not send.
            time.sleep(LEASE_EXPIRY_SECS)
            client(other).set_many({"old": "new", "counter": "5"})
            assert client(other).delete("gone")
            # Ends the cuts in this order, so that bytes that the follower's system still holds reach the leader before
            # bytes from the leader reach the follower.
            for source, target in directions:
                {"cut": cut, "leader": leader}[source].unsilence({"cut": cut, "leader": leader}[target])
                time.sleep(RETRANSMITTED_SECS)
            net.wait_until_in_sync()
        for node in net:
            assert client(node).get_many(["old", "counter", "gone"]) == {"old": b"new", "counter": b"5"}, node.name


def changes_that_failed_in_a_partition_are_not_made_later():
    failed_changes_are_not_made_later(("cut", "leader"), ("leader", "cut"))


def changes_that_failed_before_they_arrived_are_not_made_later():
    """Cuts only the direction from the follower to the leader."""
    failed_changes_are_not_made_later(("cut", "leader"))


SCENARIOS = [
    changes_that_failed_in_a_partition_are_not_made_later,
    changes_that_failed_before_they_arrived_are_not_made_later,
    a_follower_behind_a_slow_link_leaves_the_sync,
    a_partitioned_leader_is_replaced,
    a_leader_without_etcd_continues,
    a_leader_that_can_only_receive_is_replaced,
    an_unreachable_follower_leaves_the_sync,
    two_successive_partitions,
    the_exporting_leader_is_partitioned,
    the_importing_leader_is_partitioned,
    the_importing_leader_can_not_reach_the_exporting_one,
    the_importing_leader_can_not_reach_etcd,
]

if __name__ == "__main__":
    next(scenario for scenario in SCENARIOS if scenario.__name__ == sys.argv[1])()
