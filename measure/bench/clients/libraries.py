"""Compares client libraries. docs/client-benchmarks.md defines the measurements; `page.py` writes the results."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager

from bench import servers
from bench.clients.drivers import Missing
from bench.servers import EXAMPLES, LOAD_CORE, ROOT, SERVER_CORE, Server, on_core

RESULTS = ROOT / "compare/bench/clients.json"
MEMORY_MB = 1024
MODES = ("pool", "none", "thread")
DELAY_MILLIS = 5
# Time in seconds for which the server is down in a recovery test.
OUTAGE_SECS = 0.5
# Time in seconds after which a driver is killed. In a recovery test, the driver itself stops earlier.
DRIVER_SECS_MAX = 180


class Plan:
    """The number of rounds, and the parameters and durations of the measurements in each round."""

    def __init__(self, short, rounds):
        self.rounds = rounds or (1 if short else 5)
        self.threads = [1, 64] if short else [1, 2, 4, 8, 16, 32, 63, 64, 128, 256]
        self.values = [19] if short else [19, 4096]
        self.repeats = 1 if short else 3
        self.secs = 0.2 if short else 0.5
        self.calls = 100 if short else 2000
        # Duration in seconds of the load next to a busy thread, and of the load through the delaying proxy.
        self.slow_secs = 0.2 if short else 1
        # Some clients do not retry a failed server for half a minute. A short run has no time for this, and tests the
        # recovery of only one client.
        self.recovers = not short

    def secs_estimated(self, clients):
        """Returns an estimate of the duration of all rounds in seconds. The estimate is high, because most clients
        finish the measurement `times` sooner than assumed here."""
        times = len(self.values) * len(MODES) * len(self.threads) * 0.1 * (self.repeats + 1)
        loads = len(self.values) * len(self.threads) * self.secs
        each = times + loads + 3 * self.slow_secs + OUTAGE_SECS + 5
        return self.rounds * (len(clients) * each + 60 * self.recovers)


class Runner:
    def __init__(self, server, plan):
        self.server, self.plan, self.commands = server, plan, {}
        self.seed = 0
        # Lists of results by client and measurement, with an entry for each round that has a result.
        self.times = defaultdict(lambda: defaultdict(list))
        self.figures = defaultdict(lambda: defaultdict(list))
        self.failures = defaultdict(list)

    def install(self, wanted):
        """Installs clients. Returns the reason for each client that cannot be installed, and the versions of the
        others."""
        missing, versions = {}, {}
        for client in wanted:
            print(f"== {client.name}: install", flush=True)
            try:
                self.commands[client.name] = command = list(map(str, client.install()))
            except Missing as why:
                missing[client.name] = str(why)
                print(f"   left out: {why}", flush=True)
                continue
            versions[client.name] = client.version(command)
        return missing, versions

    def start(self, client, port, measure, mode="pool", value=19, threads=(1,), secs=None):
        self.seed += 1
        mode = client.pool if mode == "pool" else mode
        command = [*self.commands[client.name], "--server", f"127.0.0.1:{port}", "--measure", measure, "--mode", mode,
                   "--value-bytes", value, "--threads", ",".join(map(str, threads)), "--rounds", self.plan.repeats,
                   "--secs", secs or self.plan.secs, "--calls", self.plan.calls, "--seed", self.seed]  # fmt: skip
        return subprocess.Popen(on_core(LOAD_CORE, command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def measure(self, client, port, label, **options):
        """Runs a driver, and adds its output to `times` and `figures`."""
        with self.start(client, port, **options) as process:
            try:
                out, said = process.communicate(timeout=DRIVER_SECS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                out, said = process.communicate()
                said += f"\nended after {DRIVER_SECS_MAX} s"
        times = defaultdict(list)
        # The last line of a killed driver may be incomplete.
        for fields in (line.split(",") for line in out.splitlines(keepends=True) if line.endswith("\n")):
            if len(fields) == 6:
                times[fields[2]].append(float(fields[5]))
            else:
                self.figures[client.name][f"{label} {fields[2]} {fields[3]}"].append(float(fields[4]))
        for threads, micros in times.items():
            self.times[client.name][f"{label} {threads}"].append(micros)
        if said.strip():
            self.fail(client, label, said, process.returncode)

    def fail(self, client, label, said, status):
        why = said.strip().splitlines()[-1]
        self.failures[client.name].append(f"{label}: {why}" + ("" if status == 0 else " (given up)"))
        print(f"   {client.name}, {self.failures[client.name][-1]}", flush=True)

    def round(self, clients):
        plan = self.plan
        with Server(self.server, MEMORY_MB) as server:
            for value in plan.values:
                for mode in MODES:
                    for client in clients:
                        label = f"times {mode} {value}"
                        self.measure(client, server.port, label, measure="times", mode=mode, value=value, threads=plan.threads)
                for client in clients:
                    self.measure(client, server.port, f"load {value}", measure="load", value=value, threads=plan.threads)
            for client in clients:
                self.measure(client, server.port, "many", measure="many")
            for client in (client for client in clients if client.is_interpreted):
                self.measure(client, server.port, "busy", measure="busy", threads=[64], secs=plan.slow_secs)
            with far_away(server.port) as port:
                for client in clients:
                    self.measure(client, port, "far", measure="load", threads=[64], secs=plan.slow_secs)
        for client in clients if plan.recovers else clients[:1]:
            self.recovery(client)

    def recovery(self, client):
        """Kills and restarts the server. Records the milliseconds from the server's first reply to the client's first
        success."""
        with Server(self.server, MEMORY_MB) as server:
            with self.start(client, server.port, "recovery") as driver:
                if "ready" not in driver.stdout.readline():
                    return self.fail(client, "recovery", driver.stderr.read() or "not ready", 1)
                server.process.kill()
                server.process.wait()
                time.sleep(OUTAGE_SECS)
                server.__enter__()
                back = time.monotonic()
                line = driver.stdout.readline()
                took = max(0, time.monotonic() - back)
                said = driver.stderr.read()
            if "outage_us" in line:
                self.figures[client.name]["recovery 1 ms"].append(1e3 * took)
            else:
                self.fail(client, "recovery", said or "nothing was printed", driver.returncode)


@contextmanager
def far_away(port):
    """Runs the proxy that delays the server's replies. Yields its port."""
    command = on_core(SERVER_CORE, [EXAMPLES / "delay_proxy", f"127.0.0.1:{port}", DELAY_MILLIS])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            yield int(proxy.stdout.readline())
        finally:
            proxy.stdin.close()


def measure(wanted, server, plan):
    """Measures the clients in rounds. Each round starts with another client. Returns the results for `write`."""
    start_time = time.monotonic()
    runner = Runner(server, plan)
    missing, versions = runner.install(wanted)
    clients = [client for client in wanted if client.name in versions]
    if not clients:
        sys.exit("none of the clients can be installed")
    print(f"== measurements: about {runner.plan.secs_estimated(clients) / 60:.0f} minutes", flush=True)
    for number in range(plan.rounds):
        print(f"== round {number + 1} of {plan.rounds}", flush=True)
        first = number % len(clients)
        runner.round(clients[first:] + clients[:first])
    found = {
        "where": servers.versions() | {"server": server},
        "seconds": round(time.monotonic() - start_time),
        "rounds": plan.rounds,
        "threads": plan.threads,
        "values": plan.values,
        "clients": [[client.name, client.language, versions[client.name]] for client in clients],
        "missing": missing,
        "times": runner.times,
        "figures": runner.figures,
        "failures": runner.failures,
    }
    return found


def write(found):
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found))


def known():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else None
