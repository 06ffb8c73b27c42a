"""Compares caches that are libraries: larder-cache, moka, quick_cache and foyer."""

import json
import re
from statistics import median

from bench.servers import EXAMPLES, ROOT, output

LIBRARIES = ["larder", "moka", "quick_cache", "foyer"]
# Maps each library whose name differs from its crate's name to the crate.
CRATES = {"larder": "larder-cache", "foyer": "foyer-memory"}
LOADS = {"reads": 0, "one set in ten": 10}
THREADS = (1, 2)
ROUNDS = 5


def measure():
    """Measures all libraries in each round, so that a disturbance of the machine affects more than one library."""
    runs = {}
    for _ in range(ROUNDS):
        for load, sets in LOADS.items():
            for threads in THREADS:
                for library in LIBRARIES:
                    command = [EXAMPLES / "embedded", library, "--threads", threads, "--sets", sets]
                    found = json.loads(output(command))
                    assert found["hits"] >= 0.99 - sets / 50, f"{library} has lost items: {found}"
                    runs.setdefault(f"{load}, {threads} thr.", {}).setdefault(library, []).append(found)
    return {"versions": versions(), "runs": runs}


def versions():
    lock = (ROOT / "Cargo.lock").read_text()
    crates = {library: CRATES.get(library, library) for library in LIBRARIES}
    return {library: re.search(f'name = "{crate}"\nversion = "(.*)"', lock)[1] for library, crate in crates.items()}


def value(runs, name):
    return median(run[name] for run in runs)


def verdicts(found):
    """Returns the rows for the table of targets: figure, limit, result, and whether the result meets the target."""
    reads = [runs for load, runs in found["runs"].items() if load.startswith("reads")]
    rows = []
    for other, most in (("quick_cache", 1.5), ("moka", 0.7)):
        ratios = [value(runs["larder"], "user_ns") / value(runs[other], "user_ns") for runs in reads]
        got = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append([f"CPU time of a read ÷ {other}'s, 1 and 2 threads", f"≤ {most}", got, max(ratios) <= most])
    held = value(reads[0]["moka"], "bytes_per_item") / value(reads[0]["larder"], "bytes_per_item")
    rows.append(["items in the same memory ÷ moka's", "≥ 2", f"{held:.1f}", held >= 2])
    return rows
