"""Measures replication: how long clients wait while a leader is lost or slots move, replication lag, and the cost of
followers."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from statistics import median

from bench.servers import LARDER, LOAD_CORE, ROOT, SERVER_CORE, free_port, on_core, run, stats_of

KILLS, PAUSES, HAND_OVERS = 50, 10, 50
KILL, PAUSE, HAND_OVER = "kill", "pause", "transfer-leadership"
# Load during the loss of a leader: requests per second through both followers together, and duration in seconds.
LOAD_RATE, LOAD_SECS = 50_000, 2
# Seconds of observation after each loss.
SECS = {KILL: 1, PAUSE: 6, HAND_OVER: 0.5}
ROUNDS = 10
CONNECTIONS = 16
KEYS = 100_000
REQUESTS = 60_000
CHANGES = 20_000
COPIES, COPY_ITEMS, COPY_LEN = 5, 400_000, 1024
LAG_SECS = 10
# Migration to a fourth group: length of each value in bytes, lookups per second on each connection, duration of the
# lookups in seconds, and number of rounds.
FOURTH_LEN, FOURTH_RATE, FOURTH_SECS, FOURTH_ROUNDS = 1000, 250, 6, 3
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
LARDERD = [ROOT / "target/dist/larderd", "-u", "root", "-l", "127.0.0.1", "-U", 0, "-t", 1, "-p"]


def measure():
    """Runs this module in the Python environment of the tests, because their module `group` starts etcd and groups."""
    python = ROOT / ".venv/bin/python"
    assert python.exists(), "there is no .venv: run scripts/test, which creates it"
    command = [python, "-m", "bench.cluster"]
    return json.loads(subprocess.run(command, cwd=ROOT / "measure", check=True, capture_output=True, text=True).stdout)


def measure_here():
    with Etcd() as etcd:
        return {
            "etcd": subprocess.run(["etcd", "--version"], capture_output=True, text=True).stdout.split()[2],
            "kill": losses(etcd, KILLS, KILL),
            "kill_loaded": losses(etcd, KILLS, KILL, LOAD_RATE),
            "pause": losses(etcd, PAUSES, PAUSE),
            "hand_over": losses(etcd, HAND_OVERS, HAND_OVER),
            "acks": acks(etcd),
            "lag": lag(),
            "copy": copy(),
            "cost": in_turn([0, 1, 2], cost),
            "redis_cost": in_turn([0, 1, 2], redis_cost),
            "redis_copy": redis_copy(),
            "fourth": fourth(etcd),
        }


class Asker(threading.Thread):
    """Sets and gets a key at one node without a pause. `gap` is the longest time between two replies, in seconds."""

    def __init__(self, node):
        super().__init__()
        self.port, self.gap, self.errors, self.answers, self.goes_on = node.port, 0.0, 0, 0, True

    def run(self):
        stream, last = None, time.monotonic()
        while self.goes_on:
            try:
                stream = stream or socket.create_connection(("127.0.0.1", self.port), 20)
                stream.sendall(b"set k 0 0 1\r\n1\r\nget k\r\n")
                answer = b""
                while not answer.endswith(b"END\r\n"):
                    piece = stream.recv(4096)
                    if not piece or b"ERROR" in piece:
                        raise ConnectionError
                    answer += piece
                self.answers += 1
                self.gap, last = max(self.gap, time.monotonic() - last), time.monotonic()
            except ConnectionError:
                self.errors += 1
                stream = None


def losses(etcd, count, how, rate=0):
    """Kills or pauses the leader, or transfers leadership, `count` times. For each loss and follower, returns the
    longest wait for a reply in seconds and the number of failed requests. If `rate` is not 0, a load of this many
    requests per second runs at the same time. Also returns how many of the load's requests are answered per second."""
    gaps, errors, answered = [], [], []
    with Group(etcd, 3, "--cluster", how) as group:
        for _ in range(count):
            leader = group.wait_until_in_sync()
            others = group.followers()
            with beside([node.port for node in others], rate) as loads:
                askers = [Asker(node) for node in others]
                for asker in askers:
                    asker.start()
                time.sleep(0.5)
                if how == KILL:
                    group.kill(leader)
                elif how == PAUSE:
                    leader.signal(signal.SIGSTOP)
                else:
                    command = [LARDER, "cluster", how, "--cluster", how, "--etcd", etcd.url]
                    subprocess.run(command, check=True, **QUIET)
                time.sleep(SECS[how])
                for asker in askers:
                    asker.goes_on = False
                for asker in askers:
                    asker.join()
            gaps += [asker.gap for asker in askers]
            errors += [asker.errors for asker in askers]
            answered.append(sum(loads))
            if how == KILL:
                group.start(leader.name)
            elif how == PAUSE:
                leader.signal(signal.SIGCONT)
    return {"secs": gaps, "errors": errors, "answered": answered}


@contextmanager
def beside(ports, rate):
    """Runs a load of `rate` requests per second, divided evenly among the ports. One request in ten is a set. Yields a
    list. When the load ends, the list receives the answered requests per second of each port. With a rate of 0, runs no
    load. Requests that the load cannot send in time are not failures, and do not count in the result."""
    answered = []
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rate", rate // len(ports), "--test-time", LOAD_SECS, "--ratio", "1:9", "--reconnect-on-error",
                   "--max-faults", rate * LOAD_SECS]  # fmt: skip
        started = [subprocess.Popen([*load(port, *options), "--json-out-file", f"{folder}/{port}"], **QUIET)
                   for port in ports if rate]
        yield answered
        for port, process in zip(ports, started):
            assert process.wait() == 0, f"the load at port {port} failed"
            with open(f"{folder}/{port}") as file:
                answered.append(json.load(file)["median"]["commands"]["total"]["requests"] / LOAD_SECS)


def fourth(etcd):
    """Migrates a quarter of the slots to a fourth group. Returns the hit ratio and the latencies in µs of lookups
    before and during the migration. Also returns the share of items that moved, and the duration of the migration in
    seconds."""
    name, found = "fourth", []

    def larder(task, *words):
        command = [LARDER, "cluster", task, "--cluster", name, "--etcd", etcd.url, *words]
        subprocess.run(command, check=True, **QUIET)

    with ExitStack() as stack:
        groups = []
        for number in range(4):
            options = ("--cluster", name, "--group", str(number), "-m", "256", "-t", "1")
            groups.append(stack.enter_context(Group(etcd, 2, *options, prefix=f"g{number}n")))
        port = groups[0].leader().port
        larder("move", "--to", "1")
        larder("move", "--to", "2")
        run(load(port, "-d", FOURTH_LEN, "--key-pattern", "P:P", "-n", "allkeys", "--pipeline", 16), **QUIET)
        for _ in range(FOURTH_ROUNDS):
            before = look_ups(port)
            start_time, took = time.monotonic(), []

            def move():
                larder("move", "--to", "3")
                took.append(time.monotonic() - start_time)

            moving = threading.Thread(target=move)
            moving.start()
            meanwhile = look_ups(port)
            moving.join()
            assert took[0] > FOURTH_SECS, "the migration ended before the lookups"
            moved = int(groups[3].leader().stats()["curr_items"]) / KEYS
            found.append({"before": before, "meanwhile": meanwhile, "moved": moved, "secs": took[0]})
            larder("drain", "3")
    return found


def look_ups(port):
    with tempfile.TemporaryDirectory() as folder:
        options = ["--ratio", "0:1", "--rate-limiting", FOURTH_RATE, "--test-time", FOURTH_SECS]
        run([*load(port, *options), "--json-out-file", f"{folder}/found"], **QUIET)
        with open(f"{folder}/found") as file:
            gets = json.load(file)["median"]["commands"]["get"]
    assert not (gets["never_answered"] or gets["never_sent"]), gets
    return {"hits": gets["hits"] / gets["requests"], "errors": gets["errors"], "micros": gets["latency"]}


def acks(etcd):
    """Measures the durations of consecutive deletes. Returns percentiles in seconds for each argument of `--ack` and
    each node that receives the deletes."""
    found = {}
    for mode in ("none", "writes"):
        with Group(etcd, 3, "--cluster", f"acks{mode}", "--ack", mode) as group:
            for who, node in (("leader", group.leader()), ("follower", group.followers()[0])):
                with node.connect() as stream:
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    times = []
                    for number in range(CHANGES):
                        start_time = time.monotonic()
                        stream.sendall(b"delete k%d\r\n" % number)
                        stream.recv(100)
                        times.append(time.monotonic() - start_time)
                found[f"{mode}, sent to the {who}"] = percentiles(times)
    return found


def percentiles(values):
    values = sorted(values)
    return {name: values[min(int(len(values) * share), len(values) - 1)] for name, share in
            {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1}.items()}


@contextmanager
def servers(followers, memory=1024):
    """Runs a leader on one core and its followers on another. Yields the leader's ports, and the process and the ports
    of each server."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            leader = start(folder, started, SERVER_CORE, memory, "--replicate-on", "127.0.0.1:0")
            for _ in range(followers):
                start(folder, started, LOAD_CORE, memory, "--follow", f"127.0.0.1:{leader['REPLICATION']}")
            yield leader, started
        finally:
            for process, _ in started:
                process.terminate()
                process.wait()


def start(folder, started, core, memory, *options):
    ports = f"{folder}/{len(started)}"
    environment = {**os.environ, "MEMCACHED_PORT_FILENAME": ports}
    command = on_core(core, [*LARDERD, -1, "-m", memory, *options])
    process = subprocess.Popen(command, env=environment, **QUIET)
    while not os.path.exists(ports):
        assert process.poll() is None, command
        time.sleep(0.01)
    lines = (line.split(":") for line in open(ports).read().splitlines())
    found = {name.split()[0]: int(rest[-1].split()[-1]) for name, *rest in lines}
    started.append((process, found))
    return found


def replication(port):
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(b"stats replication\r\n")
        lines = iter(stream.makefile("rb").readline, b"END\r\n")
        pairs = (line.decode().strip().split(" ", 2)[1:] + [""] for line in lines)
        return {name: value for name, value, *_ in pairs}


def wait_for_copies(started):
    for _, ports in started[1:]:
        while replication(ports["TCP"])["link"] != "following":
            time.sleep(0.01)


def load(port, *options):
    """Returns the command of a load. Each connection has its own seed, because the leader merges simultaneous changes
    of a key into one change for its followers."""
    return on_core(LOAD_CORE, [LARDER, "bench", "-q", "--hide-histogram", "-s", "127.0.0.1", "-p", port, "-t", 1, "-c",
                               CONNECTIONS, "--key-minimum", 1, "--key-maximum", KEYS, "--key-pattern", "R:R",
                               "--distinct-client-seed", "-d", 100, "--ratio", "1:0", *options])


def lag():
    """Measures the replication lag of two followers in seconds, ten times a second. The load is half of the leader's
    highest rate of sets."""
    with servers(2) as (leader, started):
        wait_for_copies(started)
        start_time = time.monotonic()
        run(load(leader["TCP"], "--pipeline", 1, "-n", 20_000), **QUIET)
        rate = int(20_000 * CONNECTIONS / (time.monotonic() - start_time) / 2)
        sets = subprocess.Popen(load(leader["TCP"], "--rate-limiting", rate // CONNECTIONS, "--test-time", LAG_SECS), **QUIET)
        time.sleep(1)
        seen = []
        while sets.poll() is None:
            seen.append(float(replication(leader["TCP"])["followers_lag"]))
            time.sleep(0.1)
        return {"rate": rate, "secs": percentiles(seen)}


def fill(port, *options):
    command = [LARDER, "bench", "-q", "--hide-histogram", "-s", "127.0.0.1", "-p", port, "-t", 1, "-c", 4, "--key-minimum", 1,
               "--key-maximum", COPY_ITEMS, "-d", COPY_LEN, "--ratio", "1:0", "--key-pattern", "P:P", "-n", "allkeys",
               "--pipeline", 16, *options]
    run(on_core(LOAD_CORE, command), **QUIET)


def copy():
    """Measures full syncs of new followers in MB of values per second. The time counts from the start of the follower's
    process."""
    found = []
    with servers(0) as (leader, started):
        fill(leader["TCP"])
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(COPIES):
                extra = []
                start_time = time.monotonic()
                start(folder + "/", extra, LOAD_CORE, 1024, "--follow", f"127.0.0.1:{leader['REPLICATION']}")
                wait_for_copies([None, *extra])
                found.append(COPY_ITEMS * COPY_LEN / 1e6 / (time.monotonic() - start_time))
                process = extra[0][0]
                process.terminate()
                process.wait()
                os.remove(folder + "/0")
    return found


def in_turn(kinds, measure):
    """Calls `measure` with each kind in each round. Each round starts with another kind. Returns the results by
    kind."""
    found = {str(kind): [] for kind in kinds}
    for number in range(ROUNDS):
        first = number % len(kinds)
        for kind in kinds[first:] + kinds[:first]:
            found[str(kind)].append(measure(kind))
    return found


def cost(followers):
    """Measures the CPU time of a set in µs, in the leader's worker thread and in its entire process."""
    with servers(followers) as (leader, started):
        wait_for_copies(started)
        return cost_of_sets(started[0][0].pid, leader["TCP"], "(larder-")


def redis_cost(replicas):
    """Measures the CPU time of a set in µs, in the main thread of a Redis with replicas and in its entire process."""
    with redis(SERVER_CORE) as (master, port), ExitStack() as stack:
        for _ in range(replicas):
            _, replica = stack.enter_context(redis(LOAD_CORE, "--replicaof", "127.0.0.1", port))
            wait_for_replica(replica)
        return cost_of_sets(master.pid, port, "(redis-server", "-P", "resp")


def cost_of_sets(pid, port, worker, *options):
    before = cpu_of(pid, worker)
    run(load(port, "--pipeline", 10, "-n", REQUESTS, *options), **QUIET)
    took = [late - early for early, late in zip(before, cpu_of(pid, worker))]
    return [1e6 * secs / (REQUESTS * CONNECTIONS) for secs in took]


def redis_copy():
    """Measures diskless full syncs of new Redis replicas in MB of values per second. The time counts from the start of
    the replica's process."""
    found = []
    with redis(SERVER_CORE, "--repl-diskless-sync-delay", 0) as (_, port):
        fill(port, "-P", "resp")
        for _ in range(COPIES):
            start_time = time.monotonic()
            with redis(LOAD_CORE, "--repl-diskless-load", "on-empty-db", "--replicaof", "127.0.0.1", port) as (_, replica):
                wait_for_replica(replica)
                found.append(COPY_ITEMS * COPY_LEN / 1e6 / (time.monotonic() - start_time))
    return found


@contextmanager
def redis(core, *options):
    """Runs a Redis on a core. This Redis writes no files. Yields its process and its port."""
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", *options]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(on_core(core, command), cwd=folder, **QUIET)
        try:
            while not redis_says(port, b"PING").startswith(b"+PONG"):
                assert process.poll() is None, command
                time.sleep(0.01)
            yield process, port
        finally:
            process.terminate()
            process.wait()


def wait_for_replica(port):
    while b"master_link_status:up" not in redis_says(port, b"INFO replication"):
        time.sleep(0.01)


def redis_says(port, command):
    """Returns Redis's reply to a command, or empty bytes if Redis does not accept a connection yet."""
    try:
        with socket.create_connection(("127.0.0.1", port)) as stream:
            stream.sendall(command + b"\r\n")
            return stream.recv(65536)
    except ConnectionError:
        return b""


def cpu_of(pid, worker):
    """Returns the CPU time in seconds of the threads whose name contains `worker`, and of all threads."""
    ticks, workers, all_of_it = os.sysconf("SC_CLK_TCK"), 0, 0
    for task in os.listdir(f"/proc/{pid}/task"):
        name, _, rest = open(f"/proc/{pid}/task/{task}/stat").read().rpartition(")")
        fields = rest.split()
        took = (int(fields[11]) + int(fields[12])) / ticks
        all_of_it += took
        workers += took if worker in name else 0
    return workers, all_of_it


def beside_moves(found, figure):
    """Returns a figure of the lookups during a migration ÷ the same figure before it, as the median over the rounds."""
    return median(figure(one["meanwhile"]) / figure(one["before"]) for one in found["fourth"])


def ratio(costs, followers, of):
    """Returns a cost with followers ÷ the cost without followers, as the median over the rounds."""
    pairs = zip(costs[followers], costs["0"])
    return median(mine[of] / other[of] for mine, other in pairs)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / folder) for folder in ("tests", "tests/replication", "tests/cluster")]
    from group import Etcd, Group

    print(json.dumps(measure_here()))
