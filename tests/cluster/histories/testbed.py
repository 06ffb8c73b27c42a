"""The cluster under test: etcd and two groups of nodes, each process in its own network namespace, and a view of the
groups' records in etcd."""

import base64
import http.client
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from cuts import ETCD, ETCD_PORT, HUB, MEMBERS, NET, Machine, ip
from group import TMPFS
from rules import LeaderChange
from server import LARDERD, wait_until

PORTS = {"memcached": 11211, "resp": 6379, "http": 8080, "grpc": 50051}
PREFIX = "/larder/1/demo/"
URL = f"http://{NET}{ETCD}:{ETCD_PORT}"
# Pause between reads of the records, in seconds.
POLL_SECS = 0.05
# Maximum time in seconds by which a leader may delay its leadership transfer after SIGTERM.
TRANSFER_SECS = 5


class Process:
    """A process in a network namespace. The namespace outlives the process, so the system refuses connections to a
    killed process."""

    def __init__(self, number, name, log):
        self.name, self.log = name, log
        self.machine = Machine(number, ["sleep", "infinity"], log)
        self.host = self.machine.host
        wait_until(lambda: Path(f"/proc/{self.machine.pid}/comm").read_text() == "sleep\n", "the address")
        self.process, self.is_paused = None, False

    def run(self, command):
        inside = ["nsenter", "-t", str(self.machine.pid), "-n", *map(str, command)]
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.is_paused = False

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def pause(self):
        self.is_paused = True
        self.process.send_signal(signal.SIGSTOP)

    def resume(self, process):
        """Resumes a process, unless another process has replaced it."""
        if process is self.process:
            process.send_signal(signal.SIGCONT)
            self.is_paused = False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def accepts(self, port):
        try:
            socket.create_connection((self.host, port), 1).close()
            return True
        except OSError:
            return False

    def end(self):
        if self.is_running():
            self.kill()
        self.machine.end()


class Etcd(Process):
    def __init__(self, folder):
        super().__init__(ETCD, "etcd", f"{folder}/etcd.log")
        self.command = [
            "etcd", "--data-dir", f"{folder}/etcd", "--listen-client-urls", URL, "--advertise-client-urls", URL,
        ]  # fmt: skip
        self.start()

    def start(self):
        self.run(self.command)


class Node(Process):
    """A node. `life` is the number of times that its process was killed or stopped. It is incremented before each kill
    or stop."""

    ports = PORTS

    def __init__(self, number, group, folder, options):
        super().__init__(number, f"n{number}", f"{folder}/n{number}.log")
        self.group, self.life, self.is_up, self.must_run = group, 0, False, False
        self.command = [
            LARDERD, "-u", "root", "-l", f"{self.host}:{PORTS['memcached']}", "-l", f"proto[resp]:{self.host}:{PORTS['resp']}",
            "--http-listen", f"{self.host}:{PORTS['http']}", "--grpc-listen", f"{self.host}:{PORTS['grpc']}",
            "-U", 0, "-m", 64, "-t", 2, "-v", "--cluster", "demo", "--group", group, "--node", self.name, "--etcd", URL,
            "--replicate-on", f"{self.host}:{MEMBERS}", "--cluster-secret", f"{folder}/secret", *options,
        ]  # fmt: skip

    def start(self):
        """Starts the process, and waits until it accepts connections."""
        self.run(self.command)
        self.must_run = True
        wait_until(lambda: self.accepts(PORTS["grpc"]) or not self.is_running(), f"the start of {self.name}")
        self.is_up = self.is_running()

    def kill(self):
        self._end()
        super().kill()

    def stop(self):
        """Stops the process with SIGTERM."""
        self._end()
        self.process.terminate()
        self.process.wait(30)

    def _end(self):
        self.must_run = self.is_up = False
        self.life += 1


class Links:
    """Cut links: each cut affects one direction between two processes. Cuts may overlap in time."""

    def __init__(self):
        self.cuts, self.lock = Counter(), threading.Lock()

    def cut(self, source, target):
        with self.lock:
            self.cuts[source, target] += 1
            if self.cuts[source, target] == 1:
                source.machine.silence(target.machine)

    def mend(self, source, target):
        with self.lock:
            self.cuts[source, target] -= 1
            if self.cuts[source, target] == 0:
                source.machine.unsilence(target.machine)

    def has_cut(self, process):
        return any(count and process in ends for ends, count in list(self.cuts.items()))


class Records(threading.Thread):
    """Polls the groups' records. Records each leader change with the two times between which it happened."""

    def __init__(self, nodes):
        super().__init__(daemon=True, name="records")
        self.nodes, self.ended = {node.name: node for node in nodes}, threading.Event()
        self.leader_changes, self.violations = [], []
        # The last record of each group, with its revision and the time at which it was read.
        self.groups, self.live = {}, {}
        # The processes that were killed or stopped. While etcd is down, their `live` keys remain.
        self.ended_boots = set()
        # The time of the last SIGTERM to each node.
        self.stops = {}

    def run(self):
        while not self.ended.wait(POLL_SECS):
            try:
                self._read(time.monotonic())
            except (OSError, http.client.HTTPException, ValueError):
                # etcd is unreachable. The next successful read also finds all records since the last successful read.
                pass

    def _read(self, started):
        keys = read_etcd(PREFIX, to="/larder/1/demo0")
        # Replaces the map in one assignment, because other threads read it.
        self.live = {name.rpartition("/")[2]: value.decode() for name, (value, _) in keys.items() if "/live/" in name}
        for name, (value, revision) in keys.items():
            if name.startswith(f"{PREFIX}groups/"):
                self._add(name, json.loads(value), revision, started)

    def _add(self, name, record, revision, started):
        group = name.rpartition("/")[2]
        before, before_revision, earliest = self.groups.get(group, (record, revision, started))
        records, oldest = [record], revision
        # Reads the records between the last read and this one.
        while oldest > before_revision and (older := read_etcd(name, revision=oldest - 1).get(name)):
            value, oldest = older
            if oldest > before_revision:
                records.append(json.loads(value))
        for one in reversed(records):
            self._compare(group, before, one, earliest)
            before = one
        self.groups[group] = (record, revision, started)

    def _compare(self, group, last, record, earliest):
        if last["leader"] == record["leader"]:
            return
        now, former = time.monotonic(), last["leader"]
        has_stopped = now - self.stops.get(former["node"], -TRANSFER_SECS) < TRANSFER_SECS
        is_planned = former in record["in_sync"] or has_stopped
        leader = record["leader"]
        text = f"group {group}: {leader['node']} leads in epoch {record['epoch']} after {former['node']}"
        self.leader_changes.append(LeaderChange(group, earliest, now, is_planned, text))
        if leader not in last["in_sync"]:
            self.violations.append((now, f"{text}, but was not in sync: {last['in_sync']}"))

    def in_sync(self, group):
        """Returns the names of the in-sync members whose processes have not restarted since they were recorded as in
        sync."""
        if group not in self.groups:
            return []
        members = self.groups[group][0]["in_sync"]
        running = [member for member in members if member["boot"] not in self.ended_boots]
        return [member["node"] for member in running if self.live.get(member["node"]) == member["boot"]]

    def note_end(self, node):
        """Records that the process of a node ends."""
        self.ended_boots.add(self.live.get(node.name))

    def leader(self, group):
        """Returns the leader that a group's record names, or None if there is no record."""
        return self.nodes[self.groups[group][0]["leader"]["node"]] if group in self.groups else None

    def stop(self):
        self.ended.set()
        self.join()


def read_etcd(first, to=None, revision=0):
    """Returns the values and revisions of keys from etcd."""
    wanted = {"key": encoded(first), "revision": revision, **({"range_end": encoded(to)} if to else {})}
    connection = http.client.HTTPConnection(f"{NET}{ETCD}", ETCD_PORT, timeout=1)
    try:
        connection.request("POST", "/v3/kv/range", json.dumps(wanted))
        found = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    if "error" in found:
        raise ValueError(found["error"])
    decode = base64.b64decode
    return {decode(one["key"]).decode(): (decode(one["value"]), int(one["mod_revision"])) for one in found.get("kvs", [])}


def encoded(text):
    return base64.b64encode(text.encode()).decode()


class Testbed:
    """The bridge, etcd and the groups, for a `with` block. The end of the block deletes the logs unless `keeps_logs` is
    true."""

    __test__ = False

    def __init__(self, groups=2, nodes=3, options=()):
        self.group_count, self.node_count, self.options = groups, nodes, options
        self.keeps_logs = True

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="larder-checker-", dir=TMPFS)
        Path(f"{self.folder}/secret").write_text("a secret of the cluster\n")
        ip("link", "set", "lo", "up")
        ip("link", "add", "hub", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        ip("addr", "add", f"{NET}{HUB}/24", "dev", "hub")
        ip("link", "set", "hub", "up")
        self.links, self.nodes, self.etcd = Links(), [], None
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        self.etcd = Etcd(self.folder)
        wait_until(lambda: self.etcd.accepts(ETCD_PORT), "the start of etcd")
        self.groups = [str(group) for group in range(self.group_count)]
        for group in self.groups:
            for _ in range(self.node_count):
                self.nodes.append(Node(len(self.nodes) + 1, group, self.folder, self.options))
            starts = [threading.Thread(target=node.start) for node in self.nodes[-self.node_count :]]
            for start in starts:
                start.start()
            for start in starts:
                start.join()
            assert all(node.is_up for node in self.nodes), f"a node has exited: {self.folder}"
            if group == "0":
                # The first group owns all slots.
                wait_until(lambda: self.larder("status")[1].count(" leads in epoch") == 1, "a leader")
        self.records = Records(self.nodes)
        self.records.start()
        self.wait_until_in_sync()
        done, output = self.larder("move", "--to", "1")
        assert done, output

    def wait_until_in_sync(self):
        def is_in_sync():
            return all(len(self.records.in_sync(group)) == self.node_count for group in self.groups)

        wait_until(is_in_sync, "all nodes in sync")

    def larder(self, task, *words, seconds=60):
        """Runs `larder cluster`. Returns whether it succeeded, and its output."""
        command = [LARDERD.with_name("larder"), "cluster", task, "--cluster", "demo", "--etcd", URL, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return False, "no end"
        return done.returncode == 0, (done.stdout + done.stderr).strip()

    def __exit__(self, *_):
        if hasattr(self, "records"):
            self.records.stop()
        for process in [*self.nodes, *([self.etcd] if self.etcd else [])]:
            process.end()
        if not self.keeps_logs:
            shutil.rmtree(self.folder)
