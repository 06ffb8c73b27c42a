"""All commands of pymemcache (text), and meta commands through its `raw_command`."""

import pytest
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError
from pymemcache.serde import pickle_serde

from server import wait_until


def address(server):
    return server.path or (server.host, server.port)


@pytest.fixture
def client(server):
    client = Client(address(server), timeout=60, default_noreply=False)
    yield client
    client.close()


def test_set_get_delete(client):
    assert client.set("key", b"value", flags=77)
    assert client.get("key") == b"value"
    assert client.delete("key")
    assert client.get("key", b"none") == b"none"
    assert not client.delete("key")


def test_values_are_bytes(client):
    every_byte = bytes(range(256)) * 4 + b"\r\nEND\r\n"
    for value in (b"", b"007", every_byte):
        client.set("bytes", value)
        assert client.get("bytes") == value


def test_many_at_once(client):
    items = {f"key{n}": str(n).encode() for n in range(200)}
    assert client.set_many(items) == []
    assert client.get_many([*items, "absent"]) == items
    assert {key: value for key, (value, _) in client.gets_many(list(items)).items()} == items
    assert client.delete_many(items)
    assert client.get_many(items) == {}


def test_add_and_replace_depend_on_the_key(client):
    assert not client.replace("key", b"0")
    assert client.add("key", b"1")
    assert not client.add("key", b"2")
    assert client.replace("key", b"3")
    assert client.get("key") == b"3"


def test_append_and_prepend(client):
    assert not client.append("key", b"x")
    client.set("key", b"b")
    assert client.append("key", b"c")
    assert client.prepend("key", b"a")
    assert client.get("key") == b"abc"


def test_cas_wins_once(client):
    client.set("key", b"1")
    value, unique = client.gets("key")
    assert value == b"1"
    assert client.cas("key", b"2", unique)
    assert client.cas("key", b"3", unique) is False
    assert client.cas("absent", b"3", unique) is None
    assert client.get("key") == b"2"


def test_numbers(client):
    assert client.incr("n", 1) is None
    client.set("n", b"10")
    assert client.incr("n", 5) == 15
    assert client.decr("n", 1) == 14
    assert client.decr("n", 100) == 0
    client.set("n", b"18446744073709551615")
    assert client.incr("n", 1) == 0
    client.set("word", b"word")
    with pytest.raises(MemcacheClientError):
        client.incr("word", 1)


def test_expiry_and_touch(client):
    client.set("short", b"1", expire=1)
    client.set("touched", b"1", expire=3)
    client.set("untouched", b"1", expire=3)
    assert client.touch("touched", 100)
    assert not client.touch("absent", 100)
    client.set("gone", b"1", expire=-1)
    assert client.get("gone") is None
    wait_until(lambda: client.get("untouched") is None, "expiry")
    assert client.get("short") is None
    assert client.get("touched") == b"1"


def test_answers_after_noreply_are_in_order(client):
    client.set("key", b"1", noreply=True)
    client.incr("key", 1, noreply=True)
    client.append("key", b"0", noreply=True)
    client.touch("key", 0, noreply=True)
    assert client.get("key") == b"20"
    client.delete("key", noreply=True)
    assert client.get("key") is None


def test_flush_version_stats(client):
    client.set("key", b"1")
    assert client.version()
    stats = client.stats()
    assert stats[b"pid"] > 0 and stats[b"curr_connections"] >= 1
    assert client.stats("settings")[b"maxconns"] == 1024
    for page in ("items", "slabs"):
        assert client.stats(page)
    assert client.flush_all()
    assert client.get("key") is None


def test_raw_meta_commands(client):
    assert client.raw_command("mn") == b"MN"
    assert client.raw_command("ms key 5 T0 c\r\nvalue").startswith(b"HD c")
    assert client.raw_command("mg key k s") == b"HD kkey s5"
    assert client.raw_command("mg key v", end_tokens="value\r\n") == b"VA 5\r\n"


def test_raw_get_and_touch(client):
    client.set("key", b"1", expire=3)
    client.set("untouched", b"1", expire=3)
    reply = client.raw_command("gat 100 key", end_tokens="END\r\n")
    assert reply == b"VALUE key 0 1\r\n1\r\n"
    wait_until(lambda: client.get("untouched") is None, "expiry")
    assert client.get("key") == b"1"


def test_a_value_over_the_limit_is_refused_and_the_connection_lives(client):
    client.set("big", b"old")
    with pytest.raises(MemcacheServerError):
        client.set("big", b"x" * (2 << 20))
    assert client.get("big") is None
    assert client.set("big", b"x" * 1_000_000)
    assert client.get("big") == b"x" * 1_000_000


def test_pooled_hashed_and_serialising_clients(server):
    pooled = PooledClient(address(server), max_pool_size=4, serde=pickle_serde)
    pooled.set("object", {"a": [1, 2, 3]}, noreply=False)
    assert pooled.get("object") == {"a": [1, 2, 3]}
    pooled.close()
    hashed = HashClient([address(server)], use_pooling=True)
    assert hashed.set_many({"a": "1", "b": "2"}, noreply=False) == []
    assert hashed.get_many(["a", "b"]) == {"a": b"1", "b": b"2"}
    hashed.close()
