"""Tests LarderCache in the way Django tests its own caches."""

import pickle
import threading
import time

import django
import pytest
from conftest import start
from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheKey
from django.core.signals import request_finished
from django.test import override_settings

from larder_client import Client, MemcacheClientError, PooledClient

BACKEND = "larder_client.django.LarderCache"
OPTIONS = {"timeout": 60.0, "connect_timeout": 60.0}

settings.configure()
django.setup()


def configured(server, **more):
    base = {"BACKEND": BACKEND, "LOCATION": server.address, "OPTIONS": OPTIONS, **more}
    variants = {
        "default": {},
        "prefix": {"KEY_PREFIX": "prefix"},
        "v2": {"VERSION": 2},
        "custom": {"KEY_FUNCTION": lambda key, prefix, version: f"custom-{version}-{key}"},
    }
    return override_settings(CACHES={name: {**base, **variant} for name, variant in variants.items()})


@pytest.fixture
def cache(server):
    with configured(server):
        caches["default"].clear()
        yield caches["default"]


def some_function(x):
    return x + 1


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


class Unpicklable:
    def __getstate__(self):
        raise pickle.PickleError()


def test_set_and_get(cache):
    cache.set("key", "value")
    assert cache.get("key") == "value"
    assert cache.get("none") is None
    assert cache.get("none", "default") == "default"
    assert "key" in cache and "none" not in cache
    assert cache.has_key("key") and not cache.has_key("none")


@pytest.mark.parametrize(
    "value",
    ["text", "größe ☃", "", b"", b"\xff\0", 0, 1, -5, 10**30, 1.5, True, None, [1, (2,)], {"a": {1, 2}}, Point(3)],
)
def test_values(cache, value):
    cache.set("key", value)
    assert cache.get("key", "default") == value
    assert type(cache.get("key")) is type(value)
    cache.set_many({"key": value})
    assert cache.get_many(["key"]) == {"key": value}
    cache.delete("key")
    assert cache.add("key", value)
    assert cache.get("key") == value


def test_functions_are_values(cache):
    cache.set("key", some_function)
    assert cache.get("key")(1) == 2


def test_none_is_a_value(cache):
    sentinel = object()
    cache.set("key", None)
    assert cache.get("key", sentinel) is None
    assert cache.add("key", "other") is False
    assert cache.get_or_set("key", "other") is None


def test_values_that_can_not_be_pickled(cache):
    with pytest.raises(pickle.PickleError):
        cache.set("key", Unpicklable())
    with pytest.raises(pickle.PickleError):
        cache.add("key", Unpicklable())


def test_add(cache):
    assert cache.add("key", "value") is True
    assert cache.add("key", "other") is False
    assert cache.get("key") == "value"


def test_get_or_set(cache):
    assert cache.get_or_set("key", "value") == "value"
    assert cache.get_or_set("key", "other") == "value"
    assert cache.get_or_set("callable", lambda: "made") == "made"
    assert cache.get_or_set("null", lambda: None) is None
    assert cache.get_or_set("version", "value", version=3) == "value"
    assert cache.get("version") is None


def test_delete(cache):
    cache.set_many({"a": 1, "b": 2, "c": 3})
    assert cache.delete("a") is True
    assert cache.delete("a") is False
    cache.delete_many(["b", "none"])
    assert cache.get_many(["a", "b", "c"]) == {"c": 3}
    cache.clear()
    assert cache.get("c") is None


def test_get_many_and_set_many(cache):
    assert cache.set_many({"a": 1, "b": "zwei", "c": [3]}) == []
    assert cache.get_many(["a", "c", "none"]) == {"a": 1, "c": [3]}
    assert cache.get_many(iter(["b"])) == {"b": "zwei"}
    assert cache.get_many([]) == {} and cache.set_many({}) == []
    cache.set_many({"a": 4}, version=2)
    assert cache.get_many(["a"], version=2) == {"a": 4}


def test_counting(cache):
    cache.set("n", 41)
    assert cache.incr("n") == 42
    assert cache.get("n") == 42
    assert cache.incr("n", 10) == 52
    assert cache.incr("n", -10) == 42
    assert cache.decr("n") == 41
    assert cache.decr("n", 10) == 31
    assert cache.decr("n", -10) == 41
    for count in [cache.incr, cache.decr]:
        for delta in [1, -1]:
            with pytest.raises(ValueError):
                count("none", delta)
    cache.set("null", None)
    with pytest.raises(MemcacheClientError):
        cache.incr("null")


def test_versions(cache):
    cache.set("key", 1)
    cache.set("key", 2, version=2)
    assert [cache.get("key"), cache.get("key", version=2), caches["v2"].get("key")] == [1, 2, 2]
    assert caches["v2"].get("key", version=1) == 1
    assert cache.incr_version("key") == 2
    assert cache.get("key") is None and cache.get("key", version=2) == 1
    assert caches["v2"].decr_version("key") == 1
    assert cache.get("key") == 1
    cache.delete("key", version=1)
    with pytest.raises(ValueError):
        cache.incr_version("key")


def test_prefixes_and_key_functions(cache):
    cache.set("key", "default")
    caches["prefix"].set("key", "prefix")
    caches["custom"].set("key", "custom")
    assert [caches[name].get("key") for name in ["default", "prefix", "custom"]] == ["default", "prefix", "custom"]


def test_other_programs_read_text_and_numbers(cache, server):
    cache.set_many({"text": "größe", "n": 5, "bytes": b"x"})
    found = PooledClient(server.address, timeout=60).get_many([":1:text", ":1:n", ":1:bytes"])
    assert list(found.values()) == ["größe".encode(), b"5", b"x"]


def is_gone(cache, key):
    deadline = time.monotonic() + 60
    while cache.has_key(key):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return True


def test_expiry(cache):
    cache.set("soon", "value", 1)
    cache.add("added", "value", 1)
    cache.set_many({"many": "value"}, 1)
    cache.set("touched", "value", 1)
    assert cache.touch("touched", 60) is True
    assert cache.touch("none") is False
    assert all(is_gone(cache, key) for key in ["soon", "added", "many"])
    assert cache.has_key("touched")


@pytest.mark.parametrize("timeout, is_kept", [(None, True), (60, True), (60 * 60 * 24 * 40, True), (0, False), (-1, False)])
def test_timeouts(cache, timeout, is_kept):
    cache.set("set", "value", timeout)
    cache.add("added", "value", timeout)
    cache.set_many({"many": "value"}, timeout)
    cache.set("touched", "value")
    cache.touch("touched", timeout)
    assert cache.get_many(["set", "added", "many", "touched"]).keys() == (
        {"set", "added", "many", "touched"} if is_kept else set()
    )


def test_the_timeout_of_the_cache(server):
    with configured(server, TIMEOUT=1):
        cache = caches["default"]
        cache.set("key", "value")
        cache.set("kept", "value", 60)
        assert is_gone(cache, "key") and cache.has_key("kept")
    with configured(server, TIMEOUT=None):
        caches["default"].set("key", "value")
        assert caches["default"].get("key") == "value"


@pytest.mark.parametrize("key", ["key with spaces", "k" * 251, "control\x01", "line\n"])
def test_invalid_keys(cache, key):
    calls = [cache.get, cache.delete, cache.incr, cache.touch]
    for call in [*calls, lambda key: cache.set(key, 1), lambda key: cache.add(key, 1), lambda key: cache.get_many([key])]:
        with pytest.raises(InvalidCacheKey):
            call(key)
    with pytest.raises(InvalidCacheKey):
        cache.set_many({key: 1, "other": 2})
    with pytest.raises(InvalidCacheKey):
        cache.delete_many([key, "other"])


def test_keys_in_unicode(cache):
    cache.set("schlüssel☃", "value")
    assert cache.get("schlüssel☃") == "value"
    assert cache.get_many(["schlüssel☃"]) == {"schlüssel☃": "value"}


def test_a_refused_large_value_removes_the_old_one(cache):
    cache.set("key", "old")
    with pytest.raises(Exception, match="large"):
        cache.set("key", "x" * (3 << 20))
    assert cache.get("key") is None


def test_connections_are_shared_by_threads_and_stay_open_after_requests(cache, server):
    cache.set("key", "value")
    before = int(Client(server.address, timeout=60).stats()[b"total_connections"])
    found = []

    def request():
        found.append(caches["default"].get("key"))
        caches.close_all()

    for _ in range(10):
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
        request_finished.send(None)
    assert found == ["value"] * 10
    # The only new connection is the one for the statistics.
    assert int(Client(server.address, timeout=60).stats()[b"total_connections"]) == before + 1


@pytest.mark.parametrize("separator", [None, ";", ","])
def test_several_servers(separator):
    with start("larderd") as one, start("memcached") as two:
        addresses = [one.address, two.address]
        location = separator.join(addresses) if separator else addresses
        with override_settings(CACHES={"default": {"BACKEND": BACKEND, "LOCATION": location, "OPTIONS": OPTIONS}}):
            cache = caches["default"]
            values = {f"key{n}": n for n in range(100)}
            assert cache.set_many(values) == []
            assert cache.get_many(values) == values
            counts = [len(Client(address, timeout=60).get_many(f":1:key{n}" for n in range(100))) for address in addresses]
            assert sum(counts) == 100 and min(counts) > 20
            cache.clear()
            assert cache.get_many(values) == {}


def test_options_are_arguments_of_the_client(server):
    options = {**OPTIONS, "key_prefix": "p:", "max_pool_size": 3}
    with configured(server, OPTIONS=options):
        caches["default"].set("key", "value")
        assert Client(server.address, timeout=60).get("p::1:key") == b"value"
    with configured(server, OPTIONS={"no_such_option": 1}):
        with pytest.raises(TypeError):
            caches["default"].get("key")
