"""Measures restarts of servers that keep their items in a file on tmpfs (`-e`): for each signal that stops the server,
the time to the first hit and the share of items that survive. Also measures the CPU cost of `-e` without restarts."""

import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager

from bench.peer_costs import cpu_secs
from bench.servers import COMMANDS, LARDER, LOAD_CORE, SERVER_CORE, free_port, on_core, run, stats_of

TMPFS = "/dev/shm"
# The number of keys, the length of each value in bytes, and the memory limit in MiB (`-m`).
FILLS = [(1_000_000, 1000, 2048), (10_000_000, 100, 4096)]
ROUNDS = 3
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGUSR1": signal.SIGUSR1, "kill -9": signal.SIGKILL}
# memcached keeps items only after SIGUSR1.
ENDS = {"memcached": ["SIGUSR1"], "larder": list(SIGNALS)}
PAIRS = 10
# Pause before a restart. memcached discards items that were written in the same second in which it restarts.
PAUSE_SECS = 2
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def measure():
    return {"restarts": [restart(fill, name, end) for fill in FILLS for name, ends in ENDS.items() for end in ends],
            "get_cost": get_costs()}


@contextmanager
def folder():
    path = tempfile.mkdtemp(dir=TMPFS, prefix="larder-bench-")
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Kept:
    """A server that can be started again. Callers add `-e` to the command to keep its items in a file."""

    def __init__(self, name, memory_mb, directory, *options):
        self.port, self.file = free_port(), f"{directory}/memory"
        options = ["-l", "127.0.0.1", "-t", 1, "-m", memory_mb, *options]
        self.command = [*COMMANDS[name], *options]
        self.process = None

    def start(self, key=None):
        """Starts the server. Returns the time to its first reply in seconds, and whether that reply was a hit."""
        start_time = time.monotonic()
        command = on_core(SERVER_CORE, [*self.command, "-p", self.port])
        self.process = subprocess.Popen(command, **QUIET)
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as stream:
                    stream.sendall(b"get %b\r\n" % (key or b"none"))
                    answer = stream.recv(1 << 16)
                return time.monotonic() - start_time, answer.startswith(b"VALUE")
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.command
                time.sleep(0.0005)

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait()

    def items(self):
        return int(stats_of(self.port)["curr_items"])

    def fill(self, keys, length):
        command = [LARDER, "bench", "-q", "-p", self.port, "-t", 1, "-c", 16, "--pipeline", 32, "--ratio", "1:0",
                   "--key-pattern", "P:P", "-n", "allkeys", "--key-minimum", 1, "--key-maximum", keys, "-d", length]
        run(on_core(LOAD_CORE, command), **QUIET)


def restart(fill, name, end):
    keys, length, memory_mb = fill
    key = f"memtier-{keys // 2}".encode()
    found = {"items": keys, "value_bytes": length, "server": name, "end": end, "secs": [], "ended_secs": [], "kept": []}
    with folder() as directory:
        server = Kept(name, memory_mb, directory)
        server.command += ["-e", server.file]
        server.start()
        try:
            server.fill(keys, length)
            before = server.items()
            for _ in range(ROUNDS):
                start_time = time.monotonic()
                server.end(SIGNALS[end])
                found["ended_secs"].append(time.monotonic() - start_time)
                time.sleep(PAUSE_SECS)
                secs, is_hit = server.start(key)
                found["secs"].append(secs if is_hit else None)
                found["kept"].append(server.items() / before)
        finally:
            server.end(signal.SIGKILL)
    return found


def get_costs():
    """Measures the CPU time of a get in µs, in pairs of larderd without and with `-e`."""
    found = {"without": [], "with": []}
    keys, requests = 100_000, 40_000
    for number in range(PAIRS):
        for which in sorted(found, reverse=number % 2):
            with folder() as directory:
                server = Kept("larder", 1024, directory)
                server.command += ["-e", server.file] if which == "with" else []
                server.start()
                try:
                    server.fill(keys, 500)
                    before = cpu_secs(server.process.pid)
                    load = [LARDER, "bench", "-q", "-p", server.port, "-t", 1, "-c", 16, "--pipeline", 50, "--sliding",
                            "--ratio", "0:1", "-n", requests, "--key-minimum", 1, "--key-maximum", keys]
                    run(on_core(LOAD_CORE, load), **QUIET)
                    after = cpu_secs(server.process.pid)
                finally:
                    server.end(signal.SIGKILL)
            cpu = sum(after) - sum(before)
            found[which].append(1e6 * cpu / (requests * 16))
    return found


def ratio(costs):
    """Returns the CPU time with `-e` ÷ the CPU time without `-e`, as the median over the pairs."""
    return statistics.median(kept / plain for plain, kept in zip(costs["without"], costs["with"]))
