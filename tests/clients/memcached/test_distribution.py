"""`larder bench` finds the keys that libmemcached has distributed over several servers, and libmemcached finds the keys
of `larder bench`."""

import json
import subprocess
from contextlib import ExitStack

import pylibmc
import pytest

from server import BUILT

KEYS = 500
# The behaviours of pylibmc that match the rules of --distribution.
DISTRIBUTIONS = {
    "modula": {},
    "ketama": {"ketama": True},
    "ketama-weighted": {"ketama_weighted": True},
}


@pytest.fixture
def servers(start):
    with ExitStack() as stack:
        yield [stack.enter_context(start("-t", "1")) for _ in range(3)]


@pytest.fixture(params=DISTRIBUTIONS)
def distribution(request):
    return request.param


@pytest.fixture
def client(distribution, servers):
    client = pylibmc.Client([server.address for server in servers])
    client.behaviors = DISTRIBUTIONS[distribution]
    yield client
    client.disconnect_all()


def load(servers, distribution, results, *options):
    """Runs `larder bench` on the servers, and returns its results."""
    command = [BUILT / "larder", "bench", "-s", ",".join(server.address for server in servers)]
    command += ["--distribution", distribution, "-t", "1", "-c", "2", "-q", "--hide-histogram"]
    command += ["--key-minimum", "1", "--key-maximum", str(KEYS), *options]
    subprocess.run([*command, "--json-out-file", results], check=True, stdout=subprocess.DEVNULL)
    return json.loads(results.read_text())["median"]


def test_keys_that_libmemcached_stored_are_found(client, distribution, servers, tmp_path):
    for number in range(1, KEYS + 1):
        assert client.set(f"memtier-{number}", "x")
    reading = ["--ratio", "0:1", "--key-pattern", "S:S", "-n", str(KEYS)]
    for options in (["--multi-get", "1"], ["--multi-get", "10", "-P", "meta"]):
        found = load(servers, distribution, tmp_path / "results.json", *reading, *options)
        gets = found["commands"]["get"]
        assert gets["misses"] == 0 and gets["hits"] >= 2 * KEYS
        assert all(server["hits"] > 0 for server in found["servers"])


def test_keys_that_the_load_stored_are_found(client, distribution, servers, tmp_path):
    load(servers, distribution, tmp_path / "results.json", "--fill", "-n", "1", "--ratio", "1:0")
    keys = [f"memtier-{number}" for number in range(1, KEYS + 1)]
    assert set(client.get_multi(keys)) == set(keys)
    # Each key is on exactly one server.
    counts = [int(server.stats()["curr_items"]) for server in servers]
    assert sum(counts) == KEYS and all(counts)
