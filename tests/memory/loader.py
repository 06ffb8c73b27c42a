"""Runs the load program and evaluates its reports."""

import json
import subprocess

from server import LOAD, MIB

ALLOWANCE_BYTES = 32 * MIB
KEY_LEN = 13
# Maximum overhead of an item with a CAS value. It consists of the header, the alignment, and the item's shares of the
# index (at its usual load) and of the ghosts.
OVERHEAD_LEN = 31


def load(server, verb, **numbers):
    """Runs the load program. Returns its report as a dict."""
    words = [f"{name.rstrip('_')}={number}" for name, number in numbers.items()]
    command = [str(LOAD), server.address, verb, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}: {done.stderr}; server: {server.output()}"
    return json.loads(done.stdout)


def fill(server, count, size, first=0, **more):
    """Stores `count` keys from number `first`. Checks that the server accepts every set."""
    report = load(server, "set", from_=first, to=first + count, size=size, **more)
    assert report["failed"] == 0, report
    return report


def within_promise(server, limit_bytes):
    """Checks that the maximum resident memory of the process has not exceeded the limit plus the allowance."""
    peak = server.rss_peak()
    assert peak <= limit_bytes + ALLOWANCE_BYTES, f"{peak / MIB:.1f} MiB resident"


def live_share(server, first, last, size, limit_bytes):
    """Looks up the items `first..last`. Returns the share of the limit that the found items occupy, including their
    overhead."""
    report = load(server, "probe", from_=first, to=last, size=size)
    assert report["wrong"] == 0, report
    return report["hits"] * (KEY_LEN + size + OVERHEAD_LEN) / limit_bytes


def capacity(size, limit_bytes):
    """Returns the number of items that would fit into the limit if no memory were wasted."""
    return limit_bytes // (KEY_LEN + size + OVERHEAD_LEN)
