"""Tests the client of several servers: each key belongs to the same server as with pymemcache."""

import random
import time
from contextlib import ExitStack

import pymemcache
import pymemcache.client.hash
import pymemcache.client.murmur3
import pymemcache.client.rendezvous
import pytest
from conftest import PATIENT, Restartable, start
from fake import CLOSE, Fake, full_backlog

from larder_client import Client, HashClient, MemcacheError, MemcacheUnexpectedCloseError, RendezvousHash
from larder_client._native import murmur3_32


def test_the_hash_equals_pymemcache():
    chance = random.Random(1)
    for length in [*range(20), 100, 250]:
        for limit in [0x80, 0x100, 0x800, 0xD800, 0x110000]:
            text = "".join(chr(chance.randrange(limit)) for _ in range(length)).encode("utf8", "replace").decode()
            for seed in [0, 1, 2**32 - 1]:
                assert murmur3_32(text, seed) == pymemcache.client.murmur3.murmur3_32(text, seed)


@pytest.mark.parametrize("as_key", [str, lambda n: f"user:{n}", lambda n: b"user:%d" % n, lambda n: f"schlüssel☃{n}"])
def test_the_servers_of_keys_equal_pymemcache(as_key):
    nodes = [f"10.0.0.{n}:11211" for n in range(1, 6)] + ["/run/memcached.sock"]
    ours, theirs = RendezvousHash(), pymemcache.client.rendezvous.RendezvousHash()
    for node in nodes:
        ours.add_node(node)
        theirs.add_node(node)
    keys = [as_key(n) for n in range(3000)]
    assert [ours.get_node(key) for key in keys] == [theirs.get_node(key) for key in keys]
    ours.remove_node(nodes[2])
    theirs.remove_node(nodes[2])
    assert [ours.get_node(key) for key in keys] == [theirs.get_node(key) for key in keys]


def test_ties_of_hashes_are_broken_like_in_pymemcache():
    nodes = ["b", "a", "c"]
    arguments = {"nodes": nodes, "hash_function": lambda text, seed: len(text)}
    theirs = pymemcache.client.rendezvous.RendezvousHash(**arguments)
    assert RendezvousHash(**arguments).get_node("key") == theirs.get_node("key") == "c"
    assert RendezvousHash().get_node("key") is None
    with pytest.raises(ValueError):
        RendezvousHash().remove_node("a")


@pytest.fixture(scope="module")
def addresses():
    with ExitStack() as stack:
        servers = [stack.enter_context(start(kind)) for kind in ["larderd", "memcached", "larderd"]]
        yield [(server.host, server.port) for server in servers]


@pytest.mark.parametrize("pooling", [False, True])
def test_both_libraries_read_each_others_values(addresses, pooling):
    ours = HashClient(addresses, use_pooling=pooling, key_prefix="p:", **PATIENT)
    theirs = pymemcache.client.hash.HashClient(addresses, key_prefix=b"p:")
    ours.flush_all()
    values = {f"key{n}": b"%d" % n for n in range(300)}
    assert ours.set_many(values, noreply=False) == []
    assert theirs.get_many(list(values)) == values
    theirs.flush_all()
    theirs.set_many(values, noreply=False)
    assert ours.get_many(values) == values
    assert {key: ours.get(key) for key in values} == values
    assert {key: value for key, (value, _) in ours.gets_many(values).items()} == values
    shares = [len(Client(address, **PATIENT).get_many(f"p:{key}" for key in values)) for address in addresses]
    assert sum(shares) == 300 and min(shares) > 50


def test_calls(addresses):
    client = HashClient(addresses, default_noreply=False, use_pooling=True, **PATIENT)
    client.flush_all()
    for n in range(20):
        key = f"key{n}"
        assert client.get(key, "default") == "default"
        assert client.add(key, "1") is True
        assert client.append(key, "2") is True
        assert client.prepend(key, "3") is True
        assert client.incr(key, 1) == 313
        assert client.decr(key, 1) == 312
        assert client.replace(key, "x") is True
        assert client.cas(key, "y", client.gets(key)[1]) is True
        assert client.touch(key, 60) is True
        assert client.gat(key, 60) == b"y" and client.gats(key, 60)[0] == b"y"
        assert client.get(key) == b"y"
    assert client.delete("key0") is True
    assert client.delete_many(f"key{n}" for n in range(19)) is True
    assert client.get_many([f"key{n}" for n in range(20)]) == {"key19": b"y"}
    client.close()
    assert client.get("key19") == b"y"
    client.quit()


def test_a_dead_server_is_revived():
    with Restartable("memcached") as one, Restartable("memcached") as two:
        servers = [one.address, two.address]
        client = HashClient(servers, retry_attempts=1, retry_timeout=0, dead_timeout=0.5, **PATIENT)
        keys = [f"key{n}" for n in range(50)]
        client.set_many(dict.fromkeys(keys, "x"), noreply=False)
        mine = client.hasher.get_node("key0")
        [dying] = [server for server in [one, two] if mine == "{}:{}".format(*server.address)]
        dying.kill()
        for _ in range(3):
            with pytest.raises((OSError, MemcacheError)):
                client.set("key0", "x", noreply=False)
        # The client has marked the server as dead, so the other server gets its keys.
        assert client.hasher.get_node("key0") != mine
        assert client.set("key0", "y", noreply=False) is True
        dying.start()
        deadline = time.monotonic() + 60
        while client.hasher.get_node("key0") != mine:
            client.get("key0")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert client.set("key0", "z", noreply=False) is True
        assert Client(dying.address, **PATIENT).get("key0") == b"z"


@pytest.mark.parametrize("pooling", [False, True])
def test_failover_moves_calls_without_errors(pooling):
    with Restartable("larderd") as one, Restartable("memcached") as two, Restartable("larderd") as three:
        servers = [one.address, two.address, three.address]
        client = HashClient(servers, use_pooling=pooling, failover=True, default_noreply=False, **PATIENT)
        keys = [f"key{n}" for n in range(60)]
        assert client.set_many(dict.fromkeys(keys, "old")) == []
        lost = [key for key in keys if client.hasher.get_node(key) == "{}:{}".format(*two.address)]
        assert 5 < len(lost) < 60
        two.kill()
        # No call fails: neither the first calls to the dead server, nor later calls that probe it.
        assert client.get(lost[0], "missing") == "missing"
        assert client.set(lost[1], "moved") is True
        assert client.delete_many(lost[1:3]) is True
        assert client.get_many(keys) == {key: b"old" for key in keys if key not in lost}
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert client.set_many(dict.fromkeys(lost, "moved")) == []
            assert client.get_many(lost) == dict.fromkeys(lost, b"moved")
            assert client.incr("missing", 1) is None
            time.sleep(0.02)
        # The keys are on both other servers, and stay on the same server.
        shares = [len(Client(server.address, **PATIENT).get_many(lost)) for server in [one, three]]
        assert sum(shares) == len(lost) and min(shares) > 0
        two.start()
        deadline = time.monotonic() + 60
        while Client(two.address, **PATIENT).get(lost[0]) != b"back":
            assert client.set(lost[0], "back") is True
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert client.get(lost[0]) == b"back"


def test_failover_without_a_working_server():
    servers = ["127.0.0.1:1", "127.0.0.1:2"]
    client = HashClient(servers, failover=True, **PATIENT)
    for call in [lambda: client.get("a"), lambda: client.set("a", 1), lambda: client.get_many(["a", "b"])]:
        with pytest.raises(OSError, match="Connection refused"):
            call()
    forgiving = HashClient(servers, failover=True, ignore_exc=True, **PATIENT)
    assert forgiving.get("a", "default") == "default"
    assert forgiving.set("a", 1) is False
    assert forgiving.set_many({"a": 1, "b": 2}, noreply=False) == ["a", "b"]
    assert forgiving.get_many(["a", "b"]) == {}
    assert forgiving.delete_many(["a"]) is True
    assert HashClient([], failover=True, ignore_exc=True).get("a") is None
    with pytest.raises(MemcacheError, match="All servers seem to be down"):
        HashClient([], failover=True).get("a")


def test_failover_does_not_repeat_changes_that_may_have_happened():
    with Fake(CLOSE) as closing, Fake() as silent, start("larderd") as working:
        other = Client((working.host, working.port), **PATIENT)
        for fake, timeout, error in [(closing, 60, MemcacheUnexpectedCloseError), (silent, 0.3, TimeoutError)]:
            servers = [fake.address, (working.host, working.port)]
            client = HashClient(servers, failover=True, timeout=timeout, default_noreply=False)
            name = "{}:{}".format(*fake.address)
            key = next(key for key in map(str, range(100)) if client.hasher.get_node(key) == name)
            with pytest.raises(error) as failure:
                client.set(key, "x")
            assert failure.value.is_ambiguous
            assert other.get(key) is None


def test_failover_from_a_server_that_opens_no_connection():
    with full_backlog() as address, start("larderd") as working:
        servers = [address, (working.host, working.port)]
        client = HashClient(servers, failover=True, timeout=60, connect_timeout=0.2)
        keys = [f"key{n}" for n in range(20)]
        assert client.set_many(dict.fromkeys(keys, "x"), noreply=False) == []
        assert client.get_many(keys) == dict.fromkeys(keys, b"x")


def test_failover_with_another_hasher_and_a_removed_server():
    class First:
        """Every key belongs to the first server."""

        def __init__(self):
            self.nodes = []

        def add_node(self, node):
            self.nodes.append(node)

        def remove_node(self, node):
            self.nodes.remove(node)

        def get_node(self, key):
            return self.nodes[0] if self.nodes else None

    with start("larderd") as one, start("larderd") as two:
        addresses = [(server.host, server.port) for server in [one, two]]
        client = HashClient(["127.0.0.1:1", *addresses], hasher=First, failover=True, **PATIENT)
        assert client.set("key", "x", noreply=False) is True
        assert Client(addresses[0], **PATIENT).get("key") == b"x"
        client.remove_server(addresses[0])
        assert client.set("key", "y", noreply=False) is True
        assert Client(addresses[1], **PATIENT).get("key") == b"y"
        assert Client(addresses[0], **PATIENT).get("key") == b"x"


def test_without_servers():
    with pytest.raises(MemcacheError, match="All servers seem to be down"):
        HashClient([]).get("key")
    forgiving = HashClient([], ignore_exc=True)
    assert forgiving.get("key", "default") == "default"
    assert forgiving.set("key", "x") is False
    assert forgiving.set_many({"key": "x"}) == ["key"]
    assert forgiving.get_many(["key"]) == {}


def test_ignore_exc_returns_the_keys_that_were_not_stored():
    client = HashClient(["127.0.0.1:1"], ignore_exc=True, retry_attempts=5)
    assert client.set_many({"a": 1, "b": 2}, noreply=False) == ["a", "b"]
    assert client.get_many(["a", "b"]) == {}
