"""pylibmc, a client based on libmemcached, in the text and binary protocols."""

from concurrent.futures import ThreadPoolExecutor

import pylibmc
import pytest

from server import wait_until

WAYS = ["tcp4", "unix"]  # libmemcached accepts host names, but no IPv6 addresses


@pytest.fixture(params=["text", "binary"])
def client(request, server):
    client = pylibmc.Client([server.address], binary=request.param == "binary")
    client.behaviors = {"cas": True, "tcp_nodelay": True}
    yield client
    client.disconnect_all()


def test_set_get_delete(client):
    assert client.set("key", "value")
    assert client.get("key") == "value"
    assert client.delete("key")
    assert client.get("key") is None
    assert not client.delete("key")


def test_types_travel_in_the_flags(client):
    for value in (1, 2**70, b"bytes", "text", {"a": [1]}, True):
        client.set("typed", value)
        assert client.get("typed") == value


def test_compressed_values(client):
    text = "larder " * 20_000
    assert client.set("packed", text, min_compress_len=1000)
    assert client.get("packed") == text


def test_many_at_once(client):
    items = {f"key{n}": n for n in range(500)}
    assert client.set_multi(items) == []
    assert client.get_multi([*items, "absent"]) == items
    assert client.delete_multi(list(items))
    assert client.get_multi(list(items)) == {}


def test_add_replace_append_prepend(client):
    assert not replaced(client, "key", "x")
    assert client.add("key", "b")
    assert not client.add("key", "x")
    assert client.append("key", "c") and client.prepend("key", "a")
    assert client.get("key") == "abc"
    assert client.replace("key", "z")
    assert client.get("key") == "z"


def replaced(client, key, value):
    """Replaces a value, and returns whether it was stored. pylibmc returns False for the text reply NOT_STORED, and
    raises an exception for the binary reply "not found"."""
    try:
        return client.replace(key, value)
    except pylibmc.NotFound:
        return False


def test_numbers(client):
    client.set("n", 10)
    assert client.incr("n") == 11
    assert client.incr("n", 9) == 20
    assert client.decr("n", 5) == 15
    with pytest.raises(pylibmc.NotFound):
        client.incr("absent")


def test_cas_wins_once(client):
    client.set("key", "1")
    value, unique = client.gets("key")
    assert value == "1"
    assert client.cas("key", "2", unique)
    assert not client.cas("key", "3", unique)
    assert client.get("key") == "2"


def test_expiry(client):
    client.set("short", "1", time=1)
    client.set("long", "1", time=100)
    wait_until(lambda: client.get("short") is None, "expiry")
    assert client.get("long") == "1"


def test_touch(server):
    """Uses only the text protocol, because libmemcached's binary touch times out, even with memcached."""
    client = pylibmc.Client([server.address])
    client.set("touched", "1", time=3)
    client.set("untouched", "1", time=3)
    assert client.touch("touched", 100)
    wait_until(lambda: client.get("untouched") is None, "expiry")
    assert client.get("touched") == "1"


def test_pipelined_and_hashed(client):
    client.behaviors = {"no_block": True, "hash": "murmur", "ketama": True}
    for n in range(200):
        client.set(f"key{n}", n)
    assert client.get_multi([f"key{n}" for n in range(200)]) == {f"key{n}": n for n in range(200)}


def test_flush_and_stats(client):
    client.set("key", "1")
    client.flush_all()
    assert client.get("key") is None
    ((_, stats),) = client.get_stats()
    assert int(stats["cmd_set"]) >= 1


def test_a_pool_of_threads(client):
    pool = pylibmc.ThreadMappedPool(client)

    def work(worker):
        with pool.reserve() as mine:
            for n in range(200):
                mine.set(f"{worker}-{n}", n)
            found = [mine.get(f"{worker}-{n}") for n in range(200)]
            pool.relinquish()
            return found

    with ThreadPoolExecutor(8) as threads:
        assert all(found == list(range(200)) for found in threads.map(work, range(8)))
