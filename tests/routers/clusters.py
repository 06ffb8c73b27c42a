"""Several servers and the routers in front of them."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pymemcache
import pytest
import yaml

import rings
from server import ROOT, TIMEOUT_SECS, Server, free_ports, wait_until

# Name of the environment variable that contains the path of a memcached built with `--enable-proxy`.
MEMCACHED_PROXY = "LARDER_MEMCACHED_PROXY"
# The number of keys in one request to a server.
KEYS_PER_REQUEST = 500


def documented(language):
    """Returns the configuration block of docs/routers.md in a language."""
    return re.search(rf"```{language}\n(.*?)```", (ROOT / "docs/routers.md").read_text(), re.DOTALL)[1]


def own_address():
    """Returns a random loopback address. Hardly any other test uses the same address, so free ports on it stay free."""
    return "127." + ".".join(str(random.randint(1, 254)) for _ in range(3))


def connect_client(host, port):
    """Returns a client that waits for replies and closes its connection after an error."""
    return pymemcache.Client((host, port), timeout=TIMEOUT_SECS, default_noreply=False)


class Cluster:
    """Independent servers. Each can be killed and restarted."""

    def __init__(self, start, count=3, options=(), **more):
        self.host = own_address()
        self.names = [f"cache{number}" for number in range(1, count + 1)]
        self._start = lambda name, port=-1: start(
            *[option.format(name=name) for option in options], host=self.host, port=port, **more
        )
        self.servers = {}
        try:
            for name in self.names:
                self.servers[name] = self._start(name)
        except BaseException:
            self._stop_all()
            raise
        self.ports = {name: server.port for name, server in self.servers.items()}

    def client(self, name):
        """Returns a client that connects directly to one server."""
        return connect_client(self.host, self.ports[name])

    def holders(self, keys):
        """For each key, returns the names of the servers that have an item for it."""
        found = defaultdict(list)
        for name in self.servers:
            client = self.client(name)
            for at in range(0, len(keys), KEYS_PER_REQUEST):
                for key in client.get_many(keys[at : at + KEYS_PER_REQUEST]):
                    found[key].append(name)
            client.close()
        return found

    def kill(self, name):
        """Kills a server with SIGKILL."""
        server = self.servers.pop(name)
        server.process.kill()
        server.stop()

    def restart(self, name):
        """Restarts a killed server on the same port."""
        self.servers[name] = self._start(name, self.ports[name])

    @contextmanager
    def stopped(self, name):
        """Pauses a server for a `with` block. It answers no requests, but its connections stay open."""
        server = self.servers[name]
        server.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: is_stopped(server.pid), "the stop")
            yield
        finally:
            server.process.send_signal(signal.SIGCONT)

    def _stop_all(self):
        for server in self.servers.values():
            server.stop()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        try:
            for server in self.servers.values():
                assert server.alive(), f"a server ended during the test: {server.output()}"
        finally:
            self._stop_all()


def is_stopped(pid):
    """Returns whether SIGSTOP has stopped all threads of a process. The signal takes a moment to reach all of them."""
    tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(task.rpartition(")")[2].split()[0] == "T" for task in tasks)


class Twemproxy:
    """A running twemproxy with the documented configuration, changed by `settings`. If `has_names` is false, the ring
    uses the addresses of the servers instead of names."""

    def __init__(self, cluster, has_names=True, hash="fnv1a_64", is_redis=False, settings=None):
        self.host = cluster.host
        servers = cluster.servers.items()
        ports = {name: server.resp_port if is_redis else server.port for name, server in servers}
        self.ring_names = {
            name: name if has_names else f"{self.host}:{port}" for name, port in ports.items()
        }
        self.hash_key = getattr(rings, hash)
        self.dir = tempfile.TemporaryDirectory(prefix="larder-test-")
        self.pool = {
            **yaml.safe_load(documented("yaml"))["larder"],
            "hash": hash,
            "redis": is_redis,
            # The timeout is so long that other load on the machine does not look like a lost server.
            "timeout": TIMEOUT_SECS * 1000,
            **(settings or {}),
            "servers": [
                f"{self.host}:{port}:1{f' {name}' if has_names else ''}" for name, port in ports.items()
            ],
        }
        self._start()

    def _start(self):
        program = shutil.which("nutcracker", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert program, "nutcracker is not installed"
        self.port, self.stats_port = free_ports(2, self.host)
        folder = Path(self.dir.name)
        config = folder / "nutcracker.yml"
        config.write_text(yaml.safe_dump({"larder": {**self.pool, "listen": f"{self.host}:{self.port}"}}))
        command = [program, "-c", config, "-a", self.host, "-s", str(self.stats_port), "-i", "50"]
        command += ["-p", folder / "pid"]
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._await_start()
        except BaseException:
            self.stop()
            raise

    def _await_start(self):
        deadline = time.monotonic() + TIMEOUT_SECS
        while True:
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, f"twemproxy did not listen: {self.output()}"
            try:
                return self.connect().close()
            except OSError:
                time.sleep(0.02)

    def output(self):
        return self.log.read_text(errors="replace")

    def connect(self):
        return socket.create_connection((self.host, self.port), TIMEOUT_SECS)

    def client(self):
        return connect_client(self.host, self.port)

    def ring(self, names=None):
        """Returns the ring of the servers with these names, or of all servers."""
        by_ring_name = {ring_name: name for name, ring_name in self.ring_names.items()}
        chosen = [self.ring_names[name] for name in names or self.ring_names]
        return Owners(rings.Ring(chosen, self.hash_key), by_ring_name)

    def stats(self):
        """Returns the statistics of twemproxy's pool."""
        with socket.create_connection((self.host, self.stats_port), TIMEOUT_SECS) as sock:
            return json.loads(sock.makefile("rb").read())["larder"]

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(TIMEOUT_SECS)
        self.dir.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        ended, output = self.process.poll(), self.output()
        self.stop()
        assert exc[0] is not None or ended is None, f"twemproxy ended with {ended}: {output}"


class MemcachedProxy(Server):
    """A running memcached that acts as a router, with the documented configuration. Skips the test if the environment
    variable LARDER_MEMCACHED_PROXY is not set to a program."""

    def __init__(self, cluster, timeout=TIMEOUT_SECS):
        program = os.environ.get(MEMCACHED_PROXY)
        if not program:
            pytest.skip(f"{MEMCACHED_PROXY} does not name a memcached with `proxy_config`")
        self.ring_names = {name: f"{cluster.host}:{port}" for name, port in cluster.ports.items()}
        self.config = tempfile.NamedTemporaryFile("w", prefix="larder-test-", suffix=".lua")
        servers = "".join(
            f'mcp.backend("{name}", "{cluster.host}", "{port}"),' for name, port in cluster.ports.items()
        )
        routes = re.sub(r"(mcp\.backend\(.*\),\s*)+", servers, documented("lua"))
        self.config.write(re.sub(r"(connect|read)_timeout\(.*?\)", rf"\1_timeout({timeout})", routes))
        self.config.flush()
        options = ["-o", f"proxy_config={self.config.name}", "-t", "2"]
        super().__init__(program, "upstream", options, host=cluster.host)

    def client(self):
        return connect_client(self.host, self.port)

    def ring(self):
        by_ring_name = {ring_name: name for name, ring_name in self.ring_names.items()}
        return Owners(rings.Ring(by_ring_name, rings.md5), by_ring_name)

    def stop(self):
        self.config.close()
        return super().stop()


class Owners:
    """Maps keys to their owners, which are names of servers of a cluster."""

    def __init__(self, ring, names):
        self.ring, self.names = ring, names

    def owner(self, key):
        return self.names[self.ring.owner(key)]

    def keys_of(self, name, count, prefix="key"):
        """Returns some keys that belong to a server."""
        numbers = range(1_000_000)
        keys = (f"{prefix}{number}" for number in numbers)
        owned = (key for key in keys if self.owner(key) == name)
        return [key for key, _ in zip(owned, range(count))]


def receive(sock, length):
    """Receives this number of bytes of a reply."""
    answer = bytearray()
    while len(answer) < length:
        piece = sock.recv(1 << 16)
        assert piece, f"the router closed the connection after {bytes(answer)}"
        answer += piece
    return bytes(answer)
