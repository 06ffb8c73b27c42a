"""etcd, and groups of larderd processes that elect a leader through it."""

import base64
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pymemcache

from pace import Pace
from replicas import ask, keys
from server import LARDERD, TIMEOUT_SECS, Server, free_ports, wait_until


# etcd syncs each change to disk. Other tests can delay this sync for longer than nodes wait, so etcd's data is on
# tmpfs.
TMPFS = "/dev/shm" if Path("/dev/shm").is_dir() else None


# The range of all etcd keys, in the JSON form of etcd's gateway.
ALL_KEYS = {"key": "AA==", "range_end": "AA=="}


def encode(text):
    return base64.b64encode(text.encode()).decode()


def decode(text):
    return base64.b64decode(text).decode()


class Etcd:
    """An etcd of one member, on free ports."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="larder-etcd-", dir=TMPFS)
        for _ in range(20):
            if self._start(*free_ports(2)):
                return
        raise AssertionError("etcd does not start")

    def _start(self, clients, peers):
        self.url = f"http://127.0.0.1:{clients}"
        peer = f"http://127.0.0.1:{peers}"
        self.command = [
            "etcd", "--data-dir", f"{self.dir.name}/{clients}",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        return self.start()

    def start(self):
        """Starts etcd, with its data if it ran before. Returns False if it exits, for example because its ports are in
        use."""
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + TIMEOUT_SECS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "etcd does not answer"
            try:
                if httpx.get(self.url + "/health").json().get("health") == "true":
                    return True
            except httpx.HTTPError:
                pass
            time.sleep(0.02)
        return False

    def call(self, path, body, token=None):
        """Sends a request to etcd's gateway."""
        answer = httpx.post(self.url + path, json=body, headers={"Authorization": token} if token else {})
        return answer.raise_for_status().json()

    def overwrite(self, key, value):
        """Writes a key below `/larder/1/`."""
        self.call("/v3/kv/put", {"key": encode("/larder/1/" + key), "value": encode(value)})

    def value(self, key):
        """Returns the value of a key below `/larder/1/`, or None if it is absent or not JSON."""
        found = self.call("/v3/kv/range", {"key": encode("/larder/1/" + key)}).get("kvs")
        try:
            return json.loads(decode(found[0]["value"])) if found else None
        except ValueError:
            return None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
        self.dir.cleanup()


def larder(etcd, task, cluster, *words):
    """Runs `larder cluster`. Returns whether it succeeded, and its output."""
    command = [
        str(LARDERD.with_name("larder")), "cluster", task, "--cluster", cluster, "--etcd", etcd.url, *words,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return ended.returncode == 0, (ended.stdout + ended.stderr).strip()


class Node(Server):
    """A member of a group."""

    def __init__(self, etcd, name, *options, **more):
        self.name, self.is_paused = name, False
        cluster = [] if "--cluster" in options else ["--cluster", "demo"]
        options = [
            *cluster, "--node", name, "--etcd", etcd.url,
            "--replicate-on", "127.0.0.1:0", "-m", "64", "-v", *options,
        ]  # fmt: skip
        super().__init__(LARDERD, options=options, **more)

    def seen(self):
        return self.stats("cluster")

    def metrics(self):
        """Returns the samples of a scrape, by name and labels. Requires `--metrics-listen`."""
        text = httpx.get(f"http://{self._gateway_address('METRICS')}/metrics").text
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def leads(self):
        """Returns whether the node leads and answers. A paused node does not answer."""
        if self.is_paused:
            return False
        seen = self.seen()
        return seen["role"] == "leader" and seen["serving"] == "1"

    def signal(self, number):
        os.kill(self.pid, number)
        self.is_paused = number == signal.SIGSTOP or self.is_paused and number != signal.SIGCONT
        if number == signal.SIGSTOP:
            # SIGSTOP reaches each thread separately, so some threads may run for another moment.
            wait_until(self._has_paused, "the stop of all threads")

    def _has_paused(self):
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Group:
    """The nodes of one group, for a `with` block. The block may kill and restart nodes."""

    def __init__(self, etcd, count=3, *options, prefix="n", **more):
        self.etcd, self.options, self.more = etcd, options, more
        self.nodes = {}
        try:
            for number in range(1, count + 1):
                self.start(f"{prefix}{number}")
            self.wait_until_in_sync()
        except BaseException:
            self.stop()
            raise

    def start(self, name):
        self.nodes[name] = Node(self.etcd, name, *self.options, **self.more)
        return self.nodes[name]

    def kill(self, node):
        del self.nodes[node.name]
        node.kill()
        node.dir.cleanup()

    def wait_until_in_sync(self):
        """Waits until the group has a leader and all nodes are in sync. Returns the leader."""
        names = sorted(self.nodes)

        def is_in_sync():
            return all(sorted(node.seen()["in_sync"].split()) == names for node in self)

        wait_until(is_in_sync, f"{names} in sync")
        return self.leader()

    def leader(self):
        """Waits until a node leads, and returns it."""
        wait_until(lambda: any(node.leads() for node in self), "a leader")
        return next(node for node in self if node.leads())

    def followers(self):
        return [node for node in self if not node.leads()]

    def __iter__(self):
        return iter(list(self.nodes.values()))

    def stop(self):
        for node in self:
            if node.alive():
                try:
                    node.signal(signal.SIGCONT)
                except ProcessLookupError:
                    pass
            node.stop()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()


# A node without a leader waits up to a second before it rejects a request. A node that rejects a request in less than
# this time has not waited.
PATIENCE_SECS = 0.9
# Pause of clients between requests, because many tests run at the same time.
PAUSE_SECS = 0.004


class Client:
    """Repeats a set and a get on one node, and records the times of replies and faults."""

    def __init__(self, node, name):
        self.host, self.port, self.name = node.host, node.port, name
        self.end = threading.Event()
        self.answers = []
        self.faults = []
        # Errors that the node returned without waiting for a leader, and lost connections.
        self.early_faults = []
        self.pace = Pace()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        sock, number = None, 0
        while not self.end.is_set():
            number += 1
            time.sleep(PAUSE_SECS)
            value = b"%d" % number
            start_time = time.monotonic()
            try:
                sock = sock or socket.create_connection((self.host, self.port), 10)
                key = b"%s:%d" % (self.name.encode(), number % 50)
                sock.sendall(b"set %s 0 0 %d\r\n%s\r\nget %s\r\n" % (key, len(value), value, key))
                found = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)
                answer = b""
                while not answer.endswith(b"END\r\n") and answer.count(b"ERROR") < 2:
                    piece = sock.recv(4096)
                    if not piece:
                        raise ConnectionError("closed")
                    answer += piece
                assert answer == b"STORED\r\n" + found or b"SERVER_ERROR no leader" in answer, answer
                if answer.startswith(b"STORED"):
                    self.answers.append(time.monotonic())
                else:
                    self.faults.append(time.monotonic())
                    if time.monotonic() - start_time < PATIENCE_SECS:
                        self.early_faults.append(answer)
            except OSError as fault:
                self.faults.append(time.monotonic())
                self.early_faults.append(fault)
                sock = None
                if not isinstance(fault, ConnectionError):
                    raise
                time.sleep(0.005)

    def longest_gap(self):
        """Returns the longest time without a reply in seconds, minus the delay that other load on the machine may have
        caused."""
        return self.pace.without_delay(max(after - before for before, after in zip(self.answers, self.answers[1:])))

    def __enter__(self):
        self.pace.__enter__()
        self.thread.start()
        wait_until(lambda: len(self.answers) > 10, "the first answers")
        return self

    def __exit__(self, *exc):
        self.end.set()
        self.thread.join()
        self.pace.__exit__()


def http_of(server):
    """Returns an HTTP client for a `with` block."""
    return httpx.Client(base_url=f"http://{server.http_address}", timeout=60, trust_env=False)


def client(node):
    return pymemcache.Client((node.host, node.port), timeout=20, default_noreply=False)


def wait_for_same_keys(group):
    """Waits until a dump of keys is the same on all nodes."""
    leader = group.leader()
    for follower in group.followers():
        wait_until(lambda: keys(leader) == keys(follower), "the same keys")


def no_leader(node):
    return ask(node, b"get a\r\n", b"\r\n") == b"SERVER_ERROR no leader\r\n"
