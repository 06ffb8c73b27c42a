"""python-binary-memcached: a second client of the binary protocol."""

import threading

import bmemcached
import pytest

from server import wait_until


@pytest.fixture
def client(server):
    where = server.path or server.address
    client = bmemcached.Client([where])
    yield client
    client.disconnect_all()


def test_set_get_delete(client):
    assert client.set("key", "value")
    assert client.get("key") == "value"
    assert client.delete("key")
    assert client.get("key") is None


def test_many_at_once(client):
    items = {f"key{n}": f"value{n}" for n in range(200)}
    assert client.set_multi(items) == []
    assert client.get_multi(list(items)) == items
    assert client.delete_multi(list(items))
    assert client.get_multi(list(items)) == {}


def test_types_travel_in_the_flags(client):
    for value in (5, "text", b"bytes", {"a": 1}):
        client.set("typed", value)
        assert client.get("typed") == value


def test_compressed_value(client):
    client.set("packed", "x" * 100_000, compress_level=6)
    assert client.get("packed") == "x" * 100_000


def test_add_replace(client):
    assert not client.replace("key", "0")
    assert client.add("key", "1")
    assert not client.add("key", "2")
    assert client.replace("key", "3")
    assert client.get("key") == "3"


def test_cas_wins_once(client):
    client.set("key", "1")
    value, unique = client.gets("key")
    assert value == "1"
    assert client.cas("key", "2", unique)
    assert not client.cas("key", "3", unique)
    assert client.get("key") == "2"


def test_arithmetic_creates_the_initial_value(client):
    assert client.incr("n", 1, default=40) == 40
    assert client.incr("n", 2) == 42
    assert client.decr("n", 50) == 0


def test_expiry(client):
    client.set("short", "1", time=1)
    wait_until(lambda: client.get("short") is None, "expiry")


def test_flush_and_stats(client):
    client.set("key", "1")
    assert client.flush_all()
    assert client.get("key") is None
    ((_, stats),) = client.stats().items()
    assert int(stats["pid"] if "pid" in stats else stats[b"pid"]) > 0


def test_threads(client):
    failures = []

    def work(worker):
        for n in range(50):
            client.set(f"{worker}-{n}", str(n))
            if client.get(f"{worker}-{n}") != str(n):
                failures.append((worker, n))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
