"""Measures the CPU time of requests to the servers of servers.toml, under the load of `larder bench` and of an
independent tool, memtier_benchmark."""

import os
import re
import shutil
import socket
import subprocess
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from bench.servers import LARDER, LOAD_CORE, ROOT, SERVER_CORE, free_port, on_core, run

ROUNDS = 5
CONNECTIONS = 16
KEYS = 100_000
MEMTIER = "memtier_benchmark"
# memtier_benchmark's names of the protocols. It does not support the meta protocol.
MEMTIER_PROTOCOLS = {"text": "memcache_text", "binary": "memcache_binary", "resp": "redis"}


@dataclass(frozen=True)
class Load:
    tool: str
    protocol: str
    ratio: str
    depth: int

    def name(self):
        what = "sets" if self.ratio == "1:0" else "1:10"
        return f"{self.tool}, {self.protocol}, {what}, {self.depth} deep"

    def requests(self):
        """Returns the number of requests to send on each connection, so that the load takes about a second of server
        time."""
        return 100_000 if self.depth == 10 else 200_000

    def command(self, port, protocol):
        if self.tool == "memtier":
            tool = [MEMTIER, "--hide-histogram", "-P", MEMTIER_PROTOCOLS[protocol]]
        else:
            tool = [LARDER, "bench", "-q", "--hide-histogram", "--sliding", "-P", protocol]
        return [*tool, *place(port), "--pipeline", self.depth, "--ratio", self.ratio, "-n", self.requests(),
                "--distinct-client-seed"]


def place(port):
    return ["-s", "127.0.0.1", "-p", port, "-t", 1, "-c", CONNECTIONS, "--key-minimum", 1,
            "--key-maximum", KEYS, "--data-size-range", "1-1024"]


def loads():
    for depth in (10, 50):
        for tool, protocols in (("memtier", ("text", "binary")), ("larder bench", ("text", "meta", "binary"))):
            if tool == "memtier" and not shutil.which(MEMTIER):
                continue
            for protocol in protocols:
                yield Load(tool, protocol, "1:10", depth)
            yield Load(tool, "text", "1:0", depth)


def measure():
    """Measures the user and the system CPU time per request in µs in each round, by load and server. Each round starts
    with another server."""
    servers = [server for server in known() if shutil.which(str(program(server)))]
    found = {"rounds": ROUNDS, "versions": {server["name"]: version(server) for server in servers}, "loads": {}}
    if shutil.which(MEMTIER):
        found["versions"]["memtier"] = first_line([MEMTIER, "--version"])
    for number in range(ROUNDS):
        turns = servers[number % len(servers):] + servers[:number % len(servers)]
        for server in turns:
            for load in loads():
                protocol = spoken(server, load)
                if protocol:
                    cost = cost_of(server, load, protocol)
                    by_server = found["loads"].setdefault(load.name(), {})
                    by_server.setdefault(server["name"], []).append(cost)
    return found


def spoken(server, load):
    """Returns the protocol of a load on this server: the load's own protocol if the server supports it, and otherwise
    RESP for a load in text. Returns None if the server supports neither."""
    protocols = server["protocols"]
    if load.protocol in protocols:
        return load.protocol
    return "resp" if load.protocol == "text" and "resp" in protocols else None


def cost_of(server, load, protocol):
    port = free_port()
    command = [word.format(port=port) for word in server["command"]]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(on_core(SERVER_CORE, command), cwd=ROOT, **quiet) as process:
        try:
            wait_for(port, process)
            fill = [LARDER, "bench", "-q", "-P", protocol, *place(port), "--ratio", "1:0", "--key-pattern", "P:P",
                    "-n", "allkeys", "--pipeline", 16]
            run(on_core(LOAD_CORE, fill), **quiet)
            before = cpu_secs(process.pid)
            run(on_core(LOAD_CORE, load.command(port, protocol)), **quiet)
            after = cpu_secs(process.pid)
        finally:
            process.terminate()
    requests = load.requests() * CONNECTIONS
    return [1e6 * (late - early) / requests for early, late in zip(before, after)]


def wait_for(port, process):
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert process.poll() is None, "the server has exited"
            time.sleep(0.01)


def cpu_secs(pid):
    """Returns the user and system CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13]]


def known():
    return tomllib.loads((Path(__file__).parent / "servers.toml").read_text())["server"]


def program(server):
    name = server["command"][0]
    return ROOT / name if "/" in name else name


def version(server):
    name, *options = server["version"]
    line = first_line([ROOT / name if "/" in name else name, *options])
    number = re.search(r"v?=?(\d+\.\d+\.\d+)", line)
    return number.group(1) if number else line


def first_line(command):
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return (ended.stdout or ended.stderr).strip().splitlines()[0]
