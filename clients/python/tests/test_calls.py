"""Tests calls with larderd and memcached: their results and the stored values."""

import time

import pymemcache
import pymemcache.serde
import pytest
from conftest import PATIENT, start

from larder_client import (
    Client,
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnknownCommandError,
    PooledClient,
)
from larder_client.serde import compressed_serde, pickle_serde


def test_values_of_each_length_and_any_bytes(client):
    for length in [0, 1, 100, 4096, 60_000, 900_000]:
        value = (bytes(range(256)) * (length // 256 + 1))[:length]
        assert client.set("key", value) is True
        assert client.get(b"key") == value


def test_keys_are_text_or_bytes(client):
    for key in ["key", b"key", "k" * 250, b"\xff\x01", "%s"]:
        assert client.set(key, key) is True
        assert client.get(key) == (key if isinstance(key, bytes) else key.encode())
    for key in ["", "k" * 251, "a b", "a\n", b"\t", "a\0", "schlüssel", "\udc80"]:
        with pytest.raises(MemcacheIllegalInputError) as raised:
            client.get(key)
        assert raised.value.is_ambiguous is False
    for key in [None, 1, ["key"], bytearray(b"key")]:
        with pytest.raises(TypeError):
            client.get(key)


def test_unicode_keys_and_prefixes(server):
    with_both = PooledClient(server.address, allow_unicode_keys=True, key_prefix="p:", **PATIENT)
    with_both.set("schlüssel", "x")
    plain = PooledClient(server.address, **PATIENT)
    assert plain.get("p:schlüssel".encode()) == b"x"
    assert with_both.get_many(["schlüssel", "other"]) == {"schlüssel": b"x"}
    assert with_both.check_key("ü") == "p:ü".encode()
    with pytest.raises(MemcacheIllegalInputError):
        with_both.get("k" * 249)


def test_values_that_are_not_bytes_are_stored_as_text(client, server):
    for value, stored in [("text", b"text"), (5, b"5"), (None, b"None"), (1.5, b"1.5")]:
        client.set("key", value)
        assert client.get("key") == stored
    with pytest.raises(MemcacheIllegalInputError):
        client.set("key", "größe")
    utf8 = PooledClient(server.address, encoding="utf8", **PATIENT)
    utf8.set("key", "größe")
    assert utf8.get("key") == "größe".encode()


def test_stores_with_conditions(client):
    assert client.replace("key", b"1") is False
    assert client.append("key", b"1") is False
    assert client.prepend("key", b"1") is False
    assert client.add("key", b"1") is True
    assert client.add("key", b"2") is False
    assert client.replace("key", b"2") is True
    assert client.append("key", b"3") is True
    assert client.prepend("key", b"1") is True
    assert client.get("key") == b"123"


def test_cas(client):
    assert client.gets("key") == (None, None)
    assert client.gets("key", "value", "cas") == ("value", "cas")
    assert client.cas("key", b"1", b"1") is None
    client.set("key", b"1")
    value, cas = client.gets("key")
    assert value == b"1" and cas.isdigit()
    assert client.cas("key", b"2", cas) is True
    assert client.cas("key", b"3", cas) is False
    assert client.cas("key", b"3", cas, noreply=True) is True
    assert client.cas("key", b"3", int(client.gets("key")[1])) is True
    assert client.cas("key", b"4", client.gets("key")[1].decode()) is True
    assert client.get("key") == b"4"
    for cas in [None, "x", "", "1 ", "⁰", 1.5, -1]:
        with pytest.raises(MemcacheIllegalInputError):
            client.cas("key", b"5", cas)
    with pytest.raises(MemcacheClientError):
        client.cas("key", b"5", 2**64)


def test_several_keys(client):
    values = {f"key{n}": b"%d" % n for n in range(250)}
    assert client.set_many(values) == []
    assert client.get_many(values) == values
    assert client.get_many([b"key1", "none", "key2"]) == {b"key1": b"1", "key2": b"2"}
    found = client.gets_many(["key1"])
    assert found["key1"][0] == b"1" and found["key1"][1].isdigit()
    assert client.delete_many(["key1", "none", b"key2"]) is True
    assert client.get_multi(["key1", "key2", "key3"]) == {"key3": b"3"}
    assert client.get_many([]) == client.gets_many([]) == {}
    assert client.set_multi({}) == [] and client.delete_multi([]) is True
    assert client.get_many(key for key in ["key4"]) == {"key4": b"4"}


def test_large_values_in_one_call(client):
    values = {f"key{n}": bytes([n]) * 500_000 for n in range(20)}
    assert client.set_many(values) == []
    assert client.get_many(list(values)) == values


def test_counting(client):
    assert client.incr("n", 1) is None
    client.set("n", 10)
    assert client.incr("n", 5) == 15
    assert client.decr("n", 20) == 0
    assert client.incr("n", 2**64 - 1) == 2**64 - 1
    assert client.incr("n", 2) == 1
    assert client.incr("n", 1, noreply=True) is None
    assert int(client.get("n")) == 2
    client.set("text", "x")
    for key, by in [("text", 1), ("n", -1), ("n", 2**64)]:
        with pytest.raises(MemcacheClientError):
            client.incr(key, by)
    with pytest.raises(MemcacheIllegalInputError):
        client.decr("n", "1")


def test_removal(client):
    assert client.delete("key") is False
    client.set("key", "x")
    assert client.delete("key") is True
    assert client.get("key") is None
    assert client.get("key", "default") == "default"


def test_expiry(client):
    assert client.touch("key", 60) is False
    client.set("never", "x", expire=0)
    client.set("at-once", "x", expire=-1)
    client.set("unix-time", "x", expire=int(time.time()) + 3600)
    client.set("past", "x", expire=int(time.time()) - 3600)
    client.set("soon", "x", expire=1)
    assert client.get_many(["never", "at-once", "unix-time", "past"]) == {"never": b"x", "unix-time": b"x"}
    assert client.touch("never", -1) is True
    assert client.get("never") is None
    assert client.gat("unix-time", 60) == b"x"
    assert client.gats("unix-time", 60)[1].isdigit()
    assert client.gat("none", 60, "default") == "default"
    assert client.gats("none", 60, "value", "cas") == ("value", "cas")
    assert client.gat("unix-time", -1) == b"x"
    assert client.get("unix-time") is None
    for _ in range(600):
        if client.get("soon") is None:
            break
        time.sleep(0.1)
    assert client.get("soon") is None
    for expire in [1.5, "1", [1]]:
        with pytest.raises(MemcacheIllegalInputError):
            client.set("key", "x", expire=expire)


def test_results_with_noreply(server):
    client = PooledClient(server.address, **PATIENT)
    assert client.default_noreply is True
    client.flush_all()
    assert client.replace("key", "x") is True
    assert client.add("key", "x") is True
    assert client.add("key", "x") is True
    assert client.add("key", "x", noreply=False) is False
    assert client.touch("none") is True
    assert client.delete("none") is True
    assert client.delete("none", noreply=False) is False
    assert client.set_many({"key": "y"}) == []


def test_a_client_works_like_a_dictionary(client):
    client["key"] = b"x"
    assert client["key"] == b"x"
    del client["key"]
    with pytest.raises(KeyError):
        client["key"]


class Reversing:
    """A serde that stores reversed text with flags."""

    def serialize(self, key, value):
        return value[::-1].encode(), 7 if key == "seven" else 2**32 - 1

    def deserialize(self, key, value, flags):
        return key, value.decode()[::-1], flags


def test_conversion(server):
    client = PooledClient(server.address, serde=Reversing(), **PATIENT)
    client.set("seven", "abc")
    client.set("key", "abc")
    client.append("key", "d")
    client.set("flags", "x", flags=5)
    assert client.get("seven") == ("seven", "abc", 7)
    assert client.gets("seven")[0] == client.gat("seven") == ("seven", "abc", 7)
    # The serde also converts appended text.
    assert client.get_many(["key", "flags"]) == {"key": ("key", "dabc", 2**32 - 1), "flags": ("flags", "x", 5)}
    plain = PooledClient(server.address, **PATIENT)
    assert plain.get("seven") == b"cba"


def test_functions_convert_too(server):
    client = PooledClient(
        server.address,
        serializer=lambda key, value: (repr(value), 1),
        deserializer=lambda key, value, flags: (eval(value), flags),
        **PATIENT,
    )
    client.set("key", [1, "x"])
    assert client.get("key") == ([1, "x"], 1)


def test_exceptions_of_a_conversion_are_raised(server):
    class Failing:
        def serialize(self, key, value):
            raise LookupError(value)

        def deserialize(self, key, value, flags):
            raise LookupError(value)

    client = PooledClient(server.address, serde=Failing(), **PATIENT)
    with pytest.raises(LookupError, match="x"):
        client.set("key", "x")
    PooledClient(server.address, **PATIENT).set("key", "y")
    with pytest.raises(LookupError, match="y"):
        client.get("key")
    forgiving = PooledClient(server.address, serde=Failing(), ignore_exc=True, **PATIENT)
    assert forgiving.get("key", "default") == "default"


@pytest.mark.parametrize("serde", [pickle_serde, compressed_serde])
def test_pickled_and_compressed_values(server, serde):
    ours = PooledClient(server.address, serde=serde, **PATIENT)
    name = "pickle_serde" if serde is pickle_serde else "compressed_serde"
    theirs = pymemcache.PooledClient((server.host, server.port), serde=getattr(pymemcache.serde, name))
    for value in [b"x", "größe", 5, -(10**30), 1.5, None, True, [1, {"a": (2,)}], "long " * 1000]:
        ours.set("ours", value)
        theirs.set("theirs", value, noreply=False)
        for client in [ours, theirs]:
            for key in ["ours", "theirs"]:
                assert client.get(key) == value and type(client.get(key)) is type(value)


def test_administration(server, client):
    client.set("key", "x")
    assert client.version().decode() == client.stats()[b"version"].decode()
    page = client.stats()
    assert page[b"pid"] == server.pid and isinstance(page[b"rusage_user"], float)
    settings = client.stats("settings")
    assert settings[b"growth_factor"] == 1.25 and settings[b"umask"] == 0o700
    assert client.raw_command("mn") == b"MN"
    assert client.raw_command(b"get key", "END\r\n") == b"VALUE key 0 1\r\nx\r\n"
    client.set("key", "ERROR x")
    assert client.raw_command("mg key v", "ERROR x\r\n") == b"VA 7\r\n"
    client.set("key", "x")
    with pytest.raises(MemcacheUnknownCommandError):
        client.raw_command("no-such-command")
    with pytest.raises(MemcacheClientError):
        client.raw_command("get " + "k" * 300)
    assert client.cache_memlimit(64) is True
    with pytest.raises(MemcacheIllegalInputError):
        client.cache_memlimit("64")
    assert client.flush_all(delay=3600) is True
    assert client.get("key") == b"x"
    assert client.flush_all() is True
    assert client.get("key") is None


def test_a_closed_client_opens_a_new_connection(client):
    client.set("key", "x")
    assert client.connections() == (1, 1, 0)
    for close in [client.close, client.quit, client.disconnect_all]:
        close()
        assert client.connections() == (0, 0, 0)
        assert client.get("key") == b"x"


def test_values_that_are_too_large(client):
    with pytest.raises(MemcacheServerError) as raised:
        client.set("key", b"x" * (3 << 20))
    assert raised.value.is_ambiguous is False
    assert client.set("key", b"x") is True


@pytest.mark.parametrize("kind", ["larderd", "memcached"])
def test_addresses(kind):
    with start(kind) as server:
        for address in [(server.host, server.port), (server.host, str(server.port)), server.address]:
            assert Client(address, **PATIENT).get("key") is None
            assert Client(address, **PATIENT).stats()[b"pid"] == server.pid
    with start(kind, unix=True) as server:
        for address in [server.path, f"unix:{server.path}"]:
            client = Client(address, **PATIENT)
            assert client.set("key", "x") and client.get("key") == b"x"
            assert client.server == server.path
            assert client.stats()[b"pid"] == server.pid
    with start(kind, host="::1") as server:
        for address in [("::1", server.port), f"[::1]:{server.port}"]:
            assert Client(address, **PATIENT).get("key") is None


def test_shutdown():
    with start("memcached") as server:
        with pytest.raises(MemcacheUnknownCommandError):
            PooledClient(server.address, **PATIENT).shutdown()


def test_unsupported_arguments_are_refused():
    for name in ["socket_keepalive", "tls_context", "socket_module"]:
        with pytest.raises(ValueError, match=name):
            Client("localhost", **{name: object()})
    with pytest.raises(ValueError, match="lock_generator"):
        PooledClient("localhost", lock_generator=object)
    for size in [-1, 1.5, "1"]:
        with pytest.raises(ValueError, match="or 0 or None for no pool"):
            PooledClient("localhost", max_pool_size=size)
    with pytest.raises(ValueError):
        Client("localhost", timeout=-1)
    with pytest.raises(TypeError):
        Client("localhost", key_prefix=1)
    with pytest.raises(ValueError):
        Client(5)


def test_settings_can_be_read():
    client = PooledClient("cache", key_prefix="p", timeout=2.5, connect_timeout=None, ignore_exc=True)
    assert client.server == ("cache", 11211) and client.key_prefix == b"p"
    assert client.timeout == 2.5 and client.connect_timeout is None
    assert client.ignore_exc is True and client.encoding == "ascii"
    with pytest.raises(AttributeError):
        client.timeout = 5


def test_classes_can_be_derived(server):
    class Counting(Client):
        def __init__(self, port):
            super().__init__(("127.0.0.1", port), **PATIENT)
            self.calls = 0

        def get(self, key, default=None):
            self.calls += 1
            return super().get(key, default)

    client = Counting(server.port)
    client.set("key", "x")
    assert client.get("key") == b"x" and client.calls == 1
    with pytest.raises(RuntimeError, match="__init__"):
        Client.__new__(Client).get("key")
