#!/usr/bin/env python3
"""Measures the cost of idle connections: tests/operations/idle.py [--idle 10000] [--busy 200] ...

Measures the resident memory of larderd per idle connection (without the kernel's part of a socket).
Then measures latency and CPU time per request of busy connections with and without idle ones, in
alternating runs on one server. Prints JSON and checks nothing. Latencies need a machine without other
load; CPU time depends less on it. LARDER_BIN_DIR=target/release measures optimized binaries.
"""

import argparse
import contextlib
import json
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from bench import load  # noqa: E402
from server import LARDERD, Server  # noqa: E402

# Descriptors for the connections of the load and of `stats`, and for other open files.
SPARE_DESCRIPTORS = 1000
ASK = b"set idle 0 0 5\r\nvalue\r\nget idle\r\n"
ANSWER = b"STORED\r\nVALUE idle 0 5\r\nvalue\r\nEND\r\n"


def raise_descriptor_limit(count):
    """Raises the limit of open files of this process and of the servers that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


@contextlib.contextmanager
def idle_connections(server, count):
    """Opens `count` connections. Each sends a set and a get, and is then idle."""
    with contextlib.ExitStack() as open_sockets:
        for _ in range(count):
            sock = open_sockets.enter_context(server.connect(timeout=30))
            sock.sendall(ASK)
            answer = b""
            while len(answer) < len(ANSWER):
                answer += sock.recv(len(ANSWER))
            assert answer == ANSWER, answer
        yield


def bytes_per_idle(server, count):
    """Returns the resident memory that each idle connection adds to the server, in bytes."""
    with idle_connections(server, 10):
        before = server.rss()
    with idle_connections(server, count):
        assert int(server.stats()["curr_connections"]) >= count
        return (server.rss() - before) / count


def measure(server, arguments):
    """Runs the load. Returns its latencies and the server's CPU time per request, in µs."""
    words = [
        "--threads=1", f"--clients={arguments.busy}", "--ratio=1:9", "--key-maximum=100000",
        "--data-size=100", f"--rate={arguments.rate}",
    ]  # fmt: skip
    with load(server, arguments.seconds, *words) as running:
        report = running.report()
    assert report["errors"] == 0, report
    cost = report["server"]["user_micros"] + report["server"]["system_micros"]
    return {**report["latency"], "cpu": cost}


def compare(server, arguments):
    """Runs pairs of loads, one with and one without idle connections, in alternating order. Returns the medians."""
    seen = {"without": [], "with": []}
    for pair in range(arguments.pairs):
        for kind in ("without", "with") if pair % 2 == 0 else ("with", "without"):
            with idle_connections(server, arguments.idle if kind == "with" else 0):
                time.sleep(0.5)
                seen[kind].append(measure(server, arguments))
    return {
        name: {kind: statistics.median(run[name] for run in runs) for kind, runs in seen.items()}
        | {"ratio": statistics.median(
            late[name] / alone[name] for late, alone in zip(seen["with"], seen["without"])
        )}
        for name in ("p50", "p99", "p99_9", "cpu")
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=str(LARDERD))
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--busy", type=int, default=200)
    parser.add_argument("--rate", type=int, default=20_000, help="requests per second of the busy connections (open loop)")
    parser.add_argument("--seconds", type=int, default=5, help="duration of each run")
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    engine = "upstream" if Path(arguments.server).name == "memcached" else "segment"
    raise_descriptor_limit(arguments.idle)
    connections = str(arguments.idle + arguments.busy + SPARE_DESCRIPTORS)
    with Server(arguments.server, engine, ["-t", "1", "-c", connections]) as server:
        report = {"bytes_per_idle": round(bytes_per_idle(server, arguments.idle))}
        if arguments.pairs:
            report["micros"] = compare(server, arguments)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
