"""Compares the latencies that memtier_benchmark and `larder bench` report for the same command lines, at the same rates
on the same memcached."""

import json
import resource
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import DEVNULL

from bench.servers import LARDER, LOAD_CORE, Server, on_core, run

ROUNDS = 5
# Duration of each run. The latencies of memtier_benchmark's first burst include the time in which the server accepts
# all connections. A run must be long enough to make this burst less than 1 % of the requests.
SECONDS = {"all": 3, "one": 1}
MEMTIER = "memtier_benchmark"
TOOLS = ("memtier", "larder bench")
PERCENTILES = {"p50": "p50.00", "p90": "p90.00", "p99": "p99.00"}
# Each run sends requests at this share of the highest rate that both tools reach. If a published line sets a rate, its
# runs with all connections use that rate instead.
SHARE = 0.5
# The only rates per connection that memtier_benchmark sends exactly are multiples of this number of requests per
# second.
TICKS_PER_SECOND = 50
# memtier_benchmark rounds latencies up to the end of a step of this length.
RESOLUTION_MICROS = 8
# Maximum relative difference between medians that count as equal.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Line:
    """A published command line of memtier_benchmark in one of memcached's protocols. `suite` is the name of the suite
    in measure/suites with the same workload. If `fills` is true, the measurement sets all keys before the runs."""

    suite: str
    source: str
    words: str
    fills: bool = False


REPLACED = ("-n", "--test-time", "-x", "--run-count", "--rate-limiting", "-t", "--threads", "-c", "--clients")
# The published command lines, without addresses and the names of output files.
LINES = (
    Line(
        "pipelined",
        "Dragonfly, documentation",
        "--ratio 0:1 -t 60 -c 5 -n 200000 --distinct-client-seed --hide-histogram --pipeline=10 -P memcache_text",
    ),
    Line(
        "unpipelined",
        "skotti/middleware, experiment.sh",
        "--protocol=memcache_text --ratio=0:1 --expiry-range=99999-100000 --hide-histogram --key-maximum=10000 "
        "--test-time=60 --data-size=1024 --clients=32 --threads=2",
        fills=True,
    ),
    Line(
        "caches",
        "tidwall/cache-benchmarks, cmd/bench/main.go",
        "-c 16 -t 16 -n 100000 --distinct-client-seed --hide-histogram --key-prefix '' --ratio 1:0 "
        "--data-size-range 1-1024 --pipeline 50 --key-pattern=P:P --protocol memcache_text",
    ),
    Line(
        "memcrs",
        "memcrs, read-heavy",
        "--run-count=5 --protocol=memcache_binary --threads=6 --clients=50 --test-time=60 --ratio=1:10 "
        "--data-size=256 --key-maximum=1000000 --key-pattern=R:R --hide-histogram",
        fills=True,
    ),
    Line(
        "memc-kv",
        "liufuyang/memc-kv",
        "--protocol=memcache_text --generate-keys --key-maximum=100000 --key-prefix=key- --ratio=4:8 "
        "--distinct-client-seed --randomize --data-size-range=32-500 --expiry-range=10-3600 -n 10000 -c 10 -t 4",
        fills=True,
    ),
    Line(
        "ram",
        "Linux kernel, patches for multi-generational LRU",
        "-P memcache_binary -n allkeys --key-minimum=1 --key-maximum=16000000 -d 1024 --ratio=1:0 "
        "--key-pattern=P:P -c 2 -t 16 --pipeline 8 -x 6",
    ),
    Line(
        "scale",
        "memtier_benchmark, README: rate limits",
        "--ratio=1:0 --test-time=60 --rate-limiting=100 -t 2 -c 50 --key-pattern=P:P --key-maximum 1000000 "
        "-P memcache_text",
    ),
)


def measure():
    """Runs each line with its published number of connections and with one connection. Returns None if
    memtier_benchmark is not installed."""
    if not shutil.which(MEMTIER):
        print(f"{MEMTIER} is not on the PATH: skipping agreement", flush=True)
        return None
    version = run([MEMTIER, "--version"], capture_output=True).stdout.splitlines()[0].strip()
    return {"memtier": version, "rounds": ROUNDS, "lines": [measured(line) for line in LINES]}


def measured(line):
    published = connections(line)
    with tempfile.TemporaryDirectory() as folder, Server("memcached", 1024) as server:
        place = ["-s", "127.0.0.1", "-p", server.port]
        if line.fills:
            fill = [*shortened(line, published, 1), *place, "--fill", "--pipeline", 16]
            run(on_core(LOAD_CORE, [LARDER, "bench", *fill]), stdout=DEVNULL)
        found = {"suite": line.suite, "source": line.source, "published": line.words}
        for name, count in (("all", published), ("one", 1)):
            tried = Trial(line, place, Path(folder) / "found.json", count, SECONDS[name])
            found[name] = tried.alternating(own_rate(line) if name == "all" else None)
        return found


@dataclass(frozen=True)
class Trial:
    """Runs of a command line with a given number of connections. The tools write their results to `path`."""

    line: Line
    place: list
    path: Path
    connections: int
    seconds: int

    def alternating(self, rate):
        """Runs both tools alternately. Returns the percentiles in µs and the number of cores that the load kept busy.
        `rate` is the rate per connection. If it is None, uses half of the highest rate that both tools reach in closed
        loops."""
        found = {"command": shlex.join(shortened(self.line, self.connections, self.seconds))}
        if not rate:
            found["closed"] = {tool: self.load(tool) for tool in TOOLS}
            highest = min(closed["per_second"] for closed in found["closed"].values())
            rate = rate_of_each(SHARE * highest / self.connections)
        runs = {tool: [] for tool in TOOLS}
        for number in range(ROUNDS):
            for tool in TOOLS if number % 2 == 0 else reversed(TOOLS):
                runs[tool].append(self.load(tool, rate))
        return found | {"rate_limiting": rate, "per_second": rate * self.connections, "runs": runs}

    def load(self, tool, rate=None):
        """Runs a tool. Returns its percentiles in µs, its rate, and the number of cores that it kept busy."""
        words = [*shortened(self.line, self.connections, self.seconds), *self.place]
        words += ["--print-percentiles", "50,90,99", "--json-out-file", self.path]
        if tool == "larder bench":
            # memtier_benchmark's pipeline is always sliding: it sends a request for each reply.
            words = [LARDER, "bench", *words] + ([] if rate else ["--sliding"])
        else:
            words = [MEMTIER, *words]
        if rate:
            words += ["--rate-limiting", rate]
        before = children_cpu_secs()
        run(on_core(LOAD_CORE, words), stdout=DEVNULL, stderr=DEVNULL)
        busy = (children_cpu_secs() - before) / self.seconds
        read = larder_figures if tool == "larder bench" else memtier_figures
        figures = read(json.loads(self.path.read_text()))
        # Does not use the rate that memtier_benchmark reports, because its measurement of the duration has an error of
        # up to a second.
        return {**figures, "per_second": figures.pop("requests") / self.seconds, "busy": busy}


def rate_of_each(per_second):
    return max(1, round(per_second / TICKS_PER_SECOND)) * TICKS_PER_SECOND


def memtier_figures(found):
    total = found["ALL STATS"]["Totals"]
    micros = {name: 1000 * total["Percentile Latencies"][theirs] for name, theirs in PERCENTILES.items()}
    return {**micros, "requests": total["Count"]}


def larder_figures(found):
    total = found["median"]["commands"]["total"]
    micros = {name: rounded(total["latency"][name]) for name in PERCENTILES}
    return {**micros, "requests": total["requests"]}


def rounded(micros):
    """Rounds a latency in µs as memtier_benchmark does."""
    return micros // RESOLUTION_MICROS * RESOLUTION_MICROS + RESOLUTION_MICROS - 1


def children_cpu_secs():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def shortened(line, count, seconds):
    """Returns the words of a published line, changed for this measurement: one run of `seconds`, and no rate, because
    `Trial.load` adds it. All connections are on one thread, because the load has only one core."""
    words = shlex.split(line.words)
    for name in REPLACED:
        words = without(words, name)
    return [*words, "-t", "1", "-c", str(count), "--test-time", str(seconds)]


def own_rate(line):
    rate = option(shlex.split(line.words), "--rate-limiting")
    return int(rate) if rate else None


def connections(line):
    words = shlex.split(line.words)
    threads = option(words, "-t") or option(words, "--threads") or 4
    clients = option(words, "-c") or option(words, "--clients") or 50
    return int(threads) * int(clients)


def option(words, name):
    """Returns the value of an option, written as `name value` or `name=value`. Returns None if the line does not have
    the option."""
    for index, word in enumerate(words):
        if word == name:
            return words[index + 1]
        if word.startswith(f"{name}="):
            return word.split("=", 1)[1]
    return None


def without(words, name):
    """Removes an option and its value from words."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == name:
            skip = True
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return kept


def ratio(runs, name):
    """Returns a percentile's median over the runs of `larder bench` ÷ its median over the runs of memtier_benchmark."""
    ours, theirs = medians(runs, name)
    return ours / theirs


def verdict(runs, name):
    ours, theirs = medians(runs, name)
    if abs(ours / theirs - 1) <= TOLERANCE:
        return "yes"
    return "one step" if abs(ours - theirs) <= RESOLUTION_MICROS else "no"


def medians(runs, name):
    return [median(found[name] for found in runs[tool]) for tool in ("larder bench", "memtier")]
