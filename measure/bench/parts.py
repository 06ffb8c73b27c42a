"""The measurements of scripts/bench. Each part is a function that returns JSON-serializable data, or None if the part
cannot be measured."""

import json
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench import agreement as agreement_of_tools
from bench import builds as cold_builds
from bench import cluster as groups
from bench import embedded as libraries
from bench import flash as flash_tiers
from bench import idle as idle_interfaces
from bench import interfaces as further_interfaces
from bench import peer_costs, restarts
from bench.servers import EMPTY_LOOP, EXAMPLES, LARDER, LOAD_CORE, ROOT, SERVER_CORE, Server
from bench.servers import on_core, output, run, versions
from bench.workloads import QUICK, WORKLOADS

FOLDER = ROOT / "compare/bench"
SUITES = ["pipelined", "unpipelined", "caches", "memcrs", "memc-kv", "ram", "scale"]
# Numbers of server threads in `hitratio`.
THREADS = (1, 4)
COMMANDS_MEASURED = {
    "memcached": "memcached=memcached -u root -l 127.0.0.1 -U 0 -p {port} -m {memory_mb} -t 2",
    "larder": "larder=target/dist/larderd -u root -l 127.0.0.1 -p {port} -m {memory_mb} -t 2",
}
STREAMS = {
    "zipf 0.8": ["--stream", "zipf", "--key-zipf-exp", "0.8"],
    "zipf 1.0": ["--stream", "zipf"],
    # The stream has few different keys. Larger values make 1 % of its footprint enough memory for the servers to start.
    "zipf 1.2": ["--stream", "zipf", "--key-zipf-exp", "1.2", "-d", "2400"],
    "one-hit wonders": ["--stream", "onehit"],
    "scans": ["--stream", "scan"],
    "drift": ["--stream", "drift"],
    "log-normal sizes": ["--stream", "lognormal"],
    "shifting sizes": ["--stream", "sizeshift"],
    "TTL mix": ["--stream", "ttl", "--speed", "4"],
}


def suite(name):
    """Runs a suite of measure/suites in its short form."""
    start_time = time.monotonic()
    folder = ROOT / f"compare/{name}-quick"
    (folder / "results.md").unlink(missing_ok=True)
    # Ignores the exit status: it is 1 if a measurement failed, but the tables contain the failure.
    run([LARDER, "compare", f"measure/suites/{name}.toml", "--quick", "--fresh"], check=False)
    return {
        "markdown": (folder / "results.md").read_text(),
        "summary": json.loads((folder / "results.json").read_text())["summary"],
        "seconds": round(time.monotonic() - start_time),
    }


def peers():
    """Measures the CPU time of requests to the installed servers of servers.toml."""
    return peer_costs.measure()


def agreement():
    """Measures latencies with memtier_benchmark and `larder bench` for the same command lines. Returns None if
    memtier_benchmark is not installed."""
    return agreement_of_tools.measure()


def tails():
    """Measures the latency percentiles of memcached, larderd and an empty loop in µs. The load is an open loop at 70 %
    of memcached's maximum rate, in many short runs. The latencies of the empty loop show how much of the latency the
    machine causes."""
    connections = ["-t", 1, "-c", 64, "--data-size-range", "1-1024", "--key-maximum", 100_000]
    with Server("memcached", 1024) as server:
        runs = [server.load(*connections, "--fill", "--test-time", 2) for _ in range(3)]
    peak = statistics.median(run["commands"]["total"]["per_second"] for run in runs)
    rate = int(0.7 * peak)
    servers = ("memcached", "larder", EMPTY_LOOP)
    found = {"peak": peak, "rate": rate} | {name: [] for name in servers}
    for _ in range(5):
        for name in servers:
            # The empty loop does not parse sets.
            ratio = ["--ratio", "0:1"] if name == EMPTY_LOOP else []
            fill = [] if name == EMPTY_LOOP else ["--fill"]
            with Server(name, 1024) as server:
                server.load(*connections, *ratio, *fill, "--test-time", 1)
                for _ in range(6):
                    load = server.load(*connections, *ratio, "--rate", rate, "--test-time", 1)
                    found[name].append(load["commands"]["total"]["latency"])
    return found


def growth():
    """Measures the latency of a batch of 16 sets on the engine alone, in ns: p50, p99, p99.9 and maximum. Measures the
    latency while the index grows from empty to ten million items, under eviction, and in comparable steady states."""
    found = {}
    for _ in range(7):
        for line in output([EXAMPLES / "growth"]).splitlines():
            name, *nanos = line.split()
            found.setdefault(name, []).append([int(n) for n in nanos])
    return found


def fill():
    """Measures items per GiB for several value sizes."""
    return of_bench("fill", "-m", "256", "-d", "10,50,100,230,1000,4000")


def of_bench(measure, *options):
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{measure}-found.json"
    commands = [word for text in COMMANDS_MEASURED.values() for word in ("--command", text)]
    run([LARDER, "bench", measure, *commands, *options, "--json-out-file", path])
    found = json.loads(path.read_text())
    path.unlink()
    return found


def live():
    """Measures the share of a full cache's memory that live items occupy. 30 % of the sets overwrite existing items,
    with values of equal or of changing sizes."""
    return {"equal": live_share(lambda n: 200), "changing": live_share(lambda n: 50 + n * 37 % 300)}


def live_share(length, memory_mb=128, key_len=13, sets=4_000_000):
    header = 16  # bytes of an item's header in its segment, with the CAS value
    newest, total = 0, 0
    with Server("larder", memory_mb) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as stream:
            while total < sets:
                batch = []
                for _ in range(500):
                    total += 1
                    overwrites = total % 10 < 3 and newest > 100_000
                    key = newest - total * 7919 % 100_000 if overwrites else (newest := newest + 1)
                    size = length(total)
                    batch.append(b"set key%010d 0 0 %d noreply\r\n%b\r\n" % (key, size, b"v" * size))
                stream.sendall(b"".join(batch))
            stream.sendall(b"mn\r\n")
            assert stream.recv(100) == b"MN\r\n"
        stats = server.stats()
    items = int(stats["curr_items"])
    mean = statistics.mean(length(n) for n in range(100_000))
    segments = int(stats["limit_maxbytes"]) - int(stats["hash_bytes"])
    return {"items": items, "share": items * (mean + key_len + header) / segments}


def hitratio(quick=False):
    """Measures miss ratios of the workloads of `bench.workloads` with one server thread, and also with four unless
    `quick` is true. The load sends batches round-robin over four connections, so that every thread receives requests.
    Server and load never run at the same time, so one core suffices for both, and the measurements with both numbers of
    threads run in parallel."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    threads = (1,) if quick else THREADS
    names = ",".join(QUICK if quick else WORKLOADS)
    with ThreadPoolExecutor() as pool:
        measured = pool.map(partial(workload_rows, names), threads)
        return {"threads": threads, "rows": [row for rows in measured for row in rows]}


def workload_rows(names, threads):
    path = FOLDER / f"hitratio-found-{threads}.json"
    command = [LARDER, "bench", "hitratio", "--workload", names, "--connections", max(THREADS)]
    for name, program in {"memcached": "memcached -U 0", "larder": "target/dist/larderd"}.items():
        options = "-u root -l 127.0.0.1 -p {port} -m {memory_mb}"
        command += ["--command", f"{name}-t{threads}={program} {options} -t {threads}"]
    run([*command, "--json-out-file", path])
    rows = json.loads(path.read_text())["rows"]
    path.unlink()
    return rows


def footprints():
    """Measures miss ratios with caches of 1 % and 10 % of the footprint."""
    common = ["--footprint", "1%,10%", "--keys", "1000000", "-n", "3000000"]
    found = {}
    for name, stream in STREAMS.items():
        size = [] if "-d" in stream else ["-d", "1200"]
        found[name] = of_bench("hitratio", *common, *size, *stream)
    return found


def scaling():
    """Measures the engine alone, in millions of operations per second, for each Zipf exponent and share of sets. A
    round has four runs: one thread, two threads with a shared cache, two threads with separate caches, and sixteen
    threads with a shared cache."""
    found = {}
    for exponent in (1, 0):
        for sets in (0, 10, 100):
            lines = output([EXAMPLES / "scaling", sets, exponent, 20]).splitlines()
            rounds = [[float(rate) for rate in line.split()] for line in lines]
            found[f"Zipf {exponent}, {sets}% sets"] = rounds
    return found


def instructions():
    """Measures instructions per request, counted by callgrind."""
    lines = output([ROOT / "scripts/instructions"]).splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def start():
    """Measures the seconds from the start of the process to its first reply, by server and memory limit."""
    found = {}
    for memory_mb in (64, 16384):
        for name in ("memcached", "larder"):
            for _ in range(5):
                with Server(name, memory_mb) as server:
                    found.setdefault(f"{name} -m {memory_mb}", []).append(server.secs_to_answer)
    return found


def restart():
    """Measures restarts with items in a file."""
    return restarts.measure()


def flash():
    """Measures the flash tiers of larderd and memcached."""
    return flash_tiers.measure()


def embedded():
    """Measures caches as libraries."""
    return libraries.measure()


def interfaces():
    """Measures costs of RESP, HTTP and metrics."""
    return further_interfaces.measure()


def idle():
    """Measures instructions of a memcached get while further interfaces are idle."""
    return idle_interfaces.measure()


def builds():
    """Measures cold builds of larderd."""
    return cold_builds.measure()


def cluster():
    """Measures replication and clusters: the loss of a leader, replication lag, the cost of followers, and a
    migration."""
    return groups.measure()


OTHERS = (
    peers, agreement, tails, growth, fill, live, hitratio, footprints, scaling, instructions, start, restart, flash, embedded,
    interfaces, idle, builds, cluster,
)
ALL = {name: partial(suite, name) for name in SUITES} | {part.__name__: part for part in OTHERS}


def measure(name):
    start_time = time.monotonic()
    found = {"where": versions(), "found": ALL[name]()}
    if found["found"] is None:
        return
    found["seconds"] = round(time.monotonic() - start_time)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1))


def known(name):
    """Returns the last results of a part, or None if there are none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
