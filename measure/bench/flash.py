"""Compares flash tiers: larderd with `ext_path`, and memcached's extstore with 1 and with 32 I/O threads.

The measured gets are for keys that are only on flash. The fill sets more keys than the load reads, because the keys
that were set last stay in memory. `ext_recache_rate=0` prevents servers from copying items back to memory. The files
are smaller than the memory of most machines. During the reads, `uncached` drops their pages from the page cache, as if
the files were much larger than memory. Dropped pages do not affect reads that bypass the page cache."""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from bench.servers import EXAMPLES, LARDER, LOAD_CORE, ROOT, SERVER_CORE, Server, on_core, run

MEMORY_MB = 64
MEMORY_WITHOUT_FLASH_MB = 3072
KEY_BYTES = len("memtier-") + 6
# The program of each server, and its additional suboptions of `-o`.
SERVERS = {
    "larder": ("larder", ""),
    "memcached, 1 thread": ("memcached", ",ext_threads=1"),
    "memcached, 32 threads": ("memcached", ",ext_threads=32"),
}
# For each value length in bytes: the number of keys to set, the number of keys to read, the sets per second of the
# fill, and the size of the file. memcached keeps about 100 B in memory for each item on flash, which limits the number
# of keys.
READ = {1024: (420_000, 350_000, 20_000, "1G"), 8192: (150_000, 130_000, 8_000, "2G")}
# Number of connections, and number of outstanding requests on each connection.
LOADS = {"32 × 1": (32, 1), "8 × 16": (8, 16), "1 × 1": (1, 1)}
ROUNDS = 3
TEST_SECS = 5
HELD_KEYS = 1_500_000
PAIRS = 10
DROP_EVERY_SECS = 0.1


def measure():
    with tempfile.TemporaryDirectory(dir=results_folder(), prefix="flash-") as folder:
        folder_path = Path(folder)
        servers = [name for name in SERVERS if has_flash(name, folder_path)]
        found = {"servers": servers, "rounds": ROUNDS}
        found["held"] = {name: held(name, folder_path) for name in one_of_each(servers)}
        found["reads"] = {f"{length} B": {name: reads(name, folder_path, length) for name in servers} for length in READ}
        found["device"] = device(folder_path)
        found["without_flash"] = {name: without_flash(name) for name in one_of_each(servers)}
        found["restarts"] = restarts() if "larder" in servers else []
        found["steady"] = {name: steady(name, folder_path) for name in one_of_each(servers)}
        found["idle"] = idle_costs(folder_path) if "larder" in servers else None
    return found


def results_folder():
    folder = ROOT / "compare/bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def one_of_each(servers):
    """Returns all servers except memcached with 32 I/O threads, for measurements that do not depend on the number of
    I/O threads."""
    return [name for name in servers if "32" not in name]


@contextmanager
def flash_server(name, folder_path, size, options="", memory_mb=MEMORY_MB):
    """Runs a server with a flash tier. `options` precede the path in the command line, because memcached requires the
    page size before the path."""
    program, more = SERVERS[name]
    file = folder_path / "flash"
    with Server(program, memory_mb, "-o", f"{options}ext_path={file}:{size}{more}") as server:
        try:
            yield server, file
        finally:
            # The system frees the blocks of the removed file when the server exits.
            file.unlink(missing_ok=True)


def has_flash(name, folder_path):
    """Returns whether the server starts with a flash tier and reports the tier's statistics."""
    try:
        with flash_server(name, folder_path, "1G") as (server, _):
            return "extstore_objects_used" in server.stats()
    except (AssertionError, FileNotFoundError, ConnectionError):
        print(f"{name} has no flash tier: skipping it", flush=True)
        return False


def held(name, folder_path):
    """Sets 1.5 M items of 1 KB as fast as possible. Returns the number of items that the server still holds, the share
    of gets that find their key, the bytes written to the device, and the server's memory."""
    with flash_server(name, folder_path, "3G") as (server, file):
        fill(server, HELD_KEYS, 1024, rate=None)
        written = settle(server)
        stats = server.stats()
        load = server.load(*keys(HELD_KEYS, 1024), "-t", 1, "-c", 32, "--ratio", "0:1", "--distinct-client-seed",
                           "--test-time", TEST_SECS)
        found = load["commands"]["total"]
        items = int(stats["curr_items"])
        return {
            "keys": HELD_KEYS,
            "items": items,
            "found_share": found["hits"] / (found["hits"] + found["misses"]),
            "wrong": wrong_values(load),
            "index_bytes_per_item": int(stats["hash_bytes"]) / items,
            "items_on_flash": int(stats["extstore_objects_used"]),
            "device_bytes": written,
            "payload_bytes": 1024 + KEY_BYTES,
            "page_cache_bytes": page_cache_bytes(file),
            "rss_bytes": load["server"]["rss_after"],
        }


def reads(name, folder_path, length):
    """Measures gets of keys on flash under each of LOADS, and then the load with 10 % overwrites."""
    all_keys, read_keys, rate, size = READ[length]
    found = {what: [] for what in [*LOADS, "overwrites"]}
    with flash_server(name, folder_path, size, "ext_recache_rate=0,") as (server, file):
        fill(server, all_keys, length, rate)
        settle(server)
        for _ in range(ROUNDS):
            for what, (clients, depth) in LOADS.items():
                with uncached(file):
                    load = server.load(*keys(read_keys, length), "-t", 1, "-c", clients, "--pipeline", depth, "--ratio",
                                       "0:1", "--distinct-client-seed", "--test-time", TEST_SECS)
                found[what].append(figures(load))
        for _ in range(ROUNDS):
            with uncached(file):
                found["overwrites"].append(figures(overwrites(server, read_keys, length)))
    return found


def overwrites(server, number, length):
    """Runs a load of 10 % sets and 90 % gets over 32 connections, and returns its results."""
    return server.load(*keys(number, length), "-t", 1, "-c", 32, "--ratio", "1:9", "--distinct-client-seed",
                       "--test-time", TEST_SECS)


def without_flash(name):
    """Measures gets and overwrites of the same items in memory."""
    number, length = READ[1024][1], 1024
    found = {"32 × 1": [], "overwrites": []}
    with Server(SERVERS[name][0], MEMORY_WITHOUT_FLASH_MB) as server:
        fill(server, number, length, rate=None)
        for _ in range(ROUNDS):
            load = server.load(*keys(number, length), "-t", 1, "-c", 32, "--ratio", "0:1", "--distinct-client-seed",
                               "--test-time", TEST_SECS)
            found["32 × 1"].append(figures(load))
            found["overwrites"].append(figures(overwrites(server, number, length)))
    return found


def steady(name, folder_path):
    """Overwrites more items than a small flash file holds. Measures the number of bytes that these
    overwrites write to the device."""
    number, length, sets = 400_000, 1024, 800_000
    with flash_server(name, folder_path, "256M", "ext_page_size=8,") as (server, _):
        fill(server, number, length, rate=20_000)
        load_sets(server, number, length, sets)
        before = settle(server)
        load_sets(server, number, length, sets)
        written = settle(server) - before
        return {"sets": sets, "device_bytes": written, "payload_bytes": length + KEY_BYTES}


def load_sets(server, number, length, sets):
    server.load(*keys(number, length), "-t", 1, "-c", 16, "--ratio", "1:0", "--distinct-client-seed", "--rate", 20_000,
                "-n", sets // 16)


def restarts():
    """Runs measure/suites/restart.toml in its short form. For each trial, returns the server, the signal that stopped
    its process, the reason if the trial failed, and the result of the restart if there is one."""
    folder = ROOT / "compare/restart-quick"
    # Ignores the exit status: it is 1 if a trial failed, but the results contain the failure.
    run([LARDER, "compare", "measure/suites/restart.toml", "--quick", "--fresh"], check=False, stdout=subprocess.DEVNULL)
    cells = json.loads((folder / "results.json").read_text())["cells"]
    return [
        {
            "server": one["cell"]["server"],
            "end": one["cell"]["workload"],
            "failed": one["found"].get("failed", {}).get("reason"),
            **(one.get("restart") or {}),
        }
        for one in cells
    ]


def idle_costs(folder_path):
    """Measures the CPU time of a get from memory in µs, in pairs of larderd without a flash tier and with an unused
    flash tier."""
    costs = {"without": [], "with": []}
    number, requests = 100_000, 100_000
    for pair in range(PAIRS):
        for which in sorted(costs, reverse=bool(pair % 2)):
            flash = ["-o", f"ext_path={folder_path / 'flash'}:1G"] if which == "with" else []
            with Server("larder", 1024, *flash) as server:
                fill(server, number, 500, rate=None)
                load = server.load(*keys(number, 500), "-t", 1, "-c", 16, "--pipeline", 50, "--sliding", "--ratio", "0:1",
                                   "-n", requests)
                costs[which].append(cpu(load))
            (folder_path / "flash").unlink(missing_ok=True)
    return costs


def idle_ratio(costs):
    """Returns the CPU time with flash ÷ the CPU time without flash, as the median over the pairs."""
    return statistics.median(idle / plain for plain, idle in zip(costs["without"], costs["with"]))


def keys(number, length):
    """Returns options for a number of keys with values of this length. The load verifies all values."""
    return ["--key-minimum", 100_000, "--key-maximum", 99_999 + number, "-d", length, "--verify", "--max-faults", 10**9]


def fill(server, number, length, rate):
    paced = ["--rate", rate] if rate else ["--pipeline", 16]
    server.load(*keys(number, length), "-t", 1, "-c", 16, *paced, "--ratio", "1:0", "--key-pattern", "P:P", "-n", "allkeys")


def figures(load):
    """Extracts from the results of a load the figures that the page shows."""
    total, flash = load["commands"]["total"], load.get("flash") or {}
    found = {
        "per_second": total["per_second"],
        "hit_share": total["hits"] / max(total["hits"] + total["misses"], 1),
        "share_from_flash": flash.get("share_from_flash"),
        "failed_reads": flash.get("failed_reads"),
        "cpu_micros": cpu(load),
        "load_busy": load["load_cpu_seconds"] / load["seconds"],
        "wrong": wrong_values(load),
    }
    for name in ("get", "set"):
        if name in load["commands"]:
            latency = load["commands"][name]["latency"]
            found[f"{name}_p50"], found[f"{name}_p99"] = latency["p50"], latency["p99"]
    return found


def cpu(load):
    return load["server"]["user_micros"] + load["server"]["system_micros"]


def wrong_values(load):
    return sum(times for what, times in load["faults"].items() if "wrong value" in what)


def settle(server):
    """Waits until the server has written nothing to flash for a second. Returns the number of bytes that it has written
    to storage devices since its start."""
    last, since = None, time.monotonic()
    while time.monotonic() < since + 1:
        written = server.stats().get("extstore_bytes_written")
        if written != last:
            last, since = written, time.monotonic()
        time.sleep(0.1)
    io = Path(f"/proc/{server.process.pid}/io").read_text()
    return int(re.search(r"^write_bytes: (\d+)$", io, re.M).group(1))


def page_cache_bytes(file):
    if not shutil.which("fincore"):
        return None
    shown = run(["fincore", "--bytes", "--noheadings", "--output", "RES", file], stdout=subprocess.PIPE).stdout
    return int(shown.strip() or 0)


@contextmanager
def uncached(file):
    """Drops the pages of a file from the page cache every DROP_EVERY_SECS until the end of the block."""
    ended = threading.Event()
    thread = threading.Thread(target=drop_pages, args=(file, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def drop_pages(file, ended):
    # Runs on the core of the load, which is less busy than the core of the server.
    os.sched_setaffinity(threading.get_native_id(), {LOAD_CORE})
    with open(file, "rb") as opened:
        # The system cannot drop dirty pages, so this call writes them to the device first.
        os.fdatasync(opened.fileno())
        while True:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if ended.wait(DROP_EVERY_SECS):
                return


def device(folder_path):
    """Measures reads of the bare device with the lengths and depths of the loads. Returns None if larder-device's
    example `reads` is not built."""
    program = EXAMPLES / "reads"
    if not program.exists():
        return None
    found = {}
    for length, (_, number, _, _) in READ.items():
        for what, (clients, depth) in LOADS.items():
            options = ["--file", folder_path / "reads", "--bytes", -(-number * length // 2**20) * 2**20, "--depth", clients * depth,
                       "--seconds", TEST_SECS, "--ring"]
            found[f"{length} B, {what}"] = [device_read(program, options, length) for _ in range(ROUNDS)]
        (folder_path / "reads").unlink(missing_ok=True)
    return found


def device_read(program, options, length):
    """Measures reads of a record's length, rounded up to full sectors. Devices with sectors of 4096 bytes reject
    smaller reads."""
    for sector in (512, 4096):
        read_len = -(-(length + KEY_BYTES + 32) // sector) * sector
        command = on_core(SERVER_CORE, [program, *options, "--len", read_len])
        ended = run(command, check=False, capture_output=True)
        if ended.returncode == 0:
            return device_figures(ended.stdout)
    raise RuntimeError(f"{command}: {ended.stderr}")


def device_figures(text):
    """Returns the figures of a line such as `ring, depth 32, 1536 bytes: 90000 reads/s, p50 300 us, p99 900 us,
    5.90 us of CPU each`."""
    found = re.search(r"([\d.]+) reads/s, p50 ([\d.]+) us, p99 ([\d.]+) us, ([\d.]+) us of CPU", text)
    assert found, f"no figures in: {text}"
    return dict(zip(("per_second", "p50", "p99", "cpu_micros"), map(float, found.groups())))


def middle(rounds, name):
    """Returns the median of a figure over the rounds."""
    return statistics.median(one[name] for one in rounds)
