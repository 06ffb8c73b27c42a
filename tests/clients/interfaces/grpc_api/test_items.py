"""Items over gRPC, which are the same items as over memcached's protocol."""

import concurrent.futures
import os

import pymemcache
import pytest

from grpc_client import Cache, code, seconds
from server import wait_until

pytestmark = pytest.mark.larder
LENGTHS = [0, 1, 1000, 65_535, 65_536, 65_537, 300_000, 900_000]


def test_items(cache):
    key = b"a/b\0\xff"
    assert not cache.Get(key=key).found
    stored = cache.Set(key=key, value=b"value", flags=7)
    assert cache.outcome(stored) == "DONE"
    found = cache.Get(key=key)
    assert (found.found, found.value, found.flags, found.cas) == (True, b"value", 7, stored.cas)
    assert not found.HasField("ttl")
    assert cache.outcome(cache.Touch(key=key, ttl=seconds(100))) == "DONE"
    assert cache.Get(key=key).ttl.seconds in range(80, 101)
    assert cache.outcome(cache.Touch(key=b"none", ttl=seconds(100))) == "NOT_FOUND"
    assert cache.outcome(cache.Delete(key=key)) == "DONE"
    assert cache.outcome(cache.Delete(key=key)) == "NOT_FOUND"
    cache.Set(key=b"k" * 1024, value=b"")
    assert cache.Get(key=b"k" * 1024).found
    for key in (b"", b"k" * 1025):
        assert code(lambda key=key: cache.Get(key=key)) == ("INVALID_ARGUMENT", "A key has 1 to 1024 bytes.")
        assert code(lambda key=key: cache.Set(key=key))[0] == "INVALID_ARGUMENT"
        assert code(lambda key=key: cache.GetMany(keys=[b"good", key]))[0] == "INVALID_ARGUMENT"


def test_items_are_those_of_memcached(cache, server):
    client = pymemcache.Client((server.host, server.port), default_noreply=False)
    client.set("shared", b"by text", flags=9)
    found = cache.Get(key=b"shared")
    assert (found.value, found.flags) == (b"by text", 9)
    cache.Set(key=b"shared", value=b"by gRPC", ttl=seconds(1000))
    assert client.get("shared") == b"by gRPC"
    assert cache.outcome(cache.Set(key=b"new", value=b"1", cas=int(client.gets("shared")[1]))) == "NOT_FOUND"
    assert cache.outcome(cache.Set(key=b"shared", value=b"2", cas=int(client.gets("shared")[1]))) == "DONE"


def test_conditions(cache):
    assert cache.outcome(cache.Set(key=b"k", value=b"1", present=True)) == "NOT_FOUND"
    first = cache.Set(key=b"k", value=b"1", absent=True)
    assert cache.outcome(first) == "DONE"
    assert cache.outcome(cache.Set(key=b"k", value=b"2", absent=True)) == "EXISTS"
    second = cache.Set(key=b"k", value=b"2", cas=first.cas)
    assert cache.outcome(second) == "DONE" and second.cas != first.cas
    assert cache.outcome(cache.Set(key=b"k", value=b"3", cas=first.cas)) == "EXISTS"
    assert cache.outcome(cache.Delete(key=b"k", cas=first.cas)) == "EXISTS"
    assert cache.Get(key=b"k").value == b"2"
    assert cache.outcome(cache.Delete(key=b"k", cas=second.cas)) == "DONE"
    assert code(lambda: cache.Set(key=b"k", absent=False))[0] == "INVALID_ARGUMENT"


def left_after_store(cache, ttl):
    """Returns the `ttl` of a reply after a store with `ttl`, both in seconds."""
    cache.Set(key=b"short", value=b"1", ttl=seconds(ttl))
    left = cache.Get(key=b"short").ttl
    return left.seconds + left.nanos / 1e9


def test_longer_times_have_whole_seconds(cache):
    for ttl, shown in ((60, 60), (60.5, 60), (61, 61), (3600.75, 3600)):
        lefts = [left_after_store(cache, ttl) for _ in range(20)]
        # If a second of the server's clock starts between the store and the lookup, the reply shows less time.
        assert max(lefts) == shown, (ttl, lefts)


def test_times(cache):
    assert 1 < left_after_store(cache, 2.5) <= 2.5
    assert cache.Get(key=b"short").found
    wait_until(lambda: not cache.Get(key=b"short").found, "the expiry")
    for wrong in (seconds(0), seconds(-1), seconds(4_000_000_000), seconds(1 << 33)):
        assert code(lambda wrong=wrong: cache.Set(key=b"k", ttl=wrong))[0] == "INVALID_ARGUMENT"
        assert code(lambda wrong=wrong: cache.Flush(delay=wrong))[0] == "INVALID_ARGUMENT"
    cache.Set(key=b"kept", value=b"1")
    cache.Flush(delay=seconds(3))
    assert cache.Get(key=b"kept").found
    wait_until(lambda: not cache.Get(key=b"kept").found, "the flush")


def test_numbers(cache):
    assert not cache.Increment(key=b"n").HasField("value")
    assert cache.Increment(key=b"n", initial=5, ttl=seconds(60)).value == 5
    assert cache.Get(key=b"n").ttl.seconds in range(40, 61)
    assert cache.Increment(key=b"n").value == 6
    assert cache.Increment(key=b"n", by=10).value == 16
    assert cache.Increment(key=b"n", by=-20).value == 0
    assert cache.Increment(key=b"n", by=0).value == 0
    cache.Set(key=b"n", value=b"18446744073709551615")
    assert cache.Increment(key=b"n").value == 0
    cache.Set(key=b"n", value=b"text")
    assert code(lambda: cache.Increment(key=b"n"))[0] == "FAILED_PRECONDITION"


@pytest.mark.parametrize("length", LENGTHS)
def test_values_of_all_lengths(cache, length):
    value = os.urandom(length)
    assert cache.outcome(cache.Set(key=b"set", value=value)) == "DONE"
    pieces = [value[at : at + 50_000] for at in range(0, length, 50_000)]
    assert cache.outcome(cache.write(pieces, key=b"written", flags=3)) == "DONE"
    for key, flags in ((b"set", 0), (b"written", 3)):
        assert cache.Get(key=key).value == value
        head, read = cache.read(key)
        assert (head.found, head.length, head.flags) == (True, length, flags) and read == value


def test_invalid_values_are_refused(cache, server):
    limit = int(server.stats("settings")["item_size_max"])
    too_long = bytes(limit + 1)
    assert code(lambda: cache.Set(key=b"k", value=too_long))[0] == "INVALID_ARGUMENT"
    assert code(lambda: cache.write([too_long[: 1 << 16]], key=b"k", length=limit + 1))[0] == "INVALID_ARGUMENT"
    assert code(lambda: cache.write([b"x"], key=b"k", length=1 << 63))[0] == "INVALID_ARGUMENT"
    for length in (1, 4, 200_000):
        for sent in (0, length - 1, length + 1):
            refused = code(lambda sent=sent, length=length: cache.write([bytes(sent)], key=b"k", length=length))
            assert refused[0] == "INVALID_ARGUMENT" and "length" in refused[1]
    request, head = cache.message("WriteRequest"), cache.message("WriteHead")
    item = head(item=cache.message("SetRequest")(key=b"k"), length=2)
    for messages in (
        [],
        [request()],
        [request(data=b"ab")],
        [request(head=item), request(data=b"a"), request(head=item)],
        [request(head=head(length=2))],
        [request(head=head(item=cache.message("SetRequest")(key=b"k", value=b"ab"), length=2))],
    ):
        assert code(lambda messages=messages: cache.Write(iter(messages)))[0] == "INVALID_ARGUMENT"
    assert not cache.Get(key=b"k").found
    assert not cache.read(b"k")[0].found


def test_many_keys(cache):
    keys = [b"k%d" % n for n in range(1000)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: cache.Set(key=keys[n], value=b"%d" % n * (n % 7)), range(0, 1000, 2)))
    answers = list(cache.GetMany(keys=keys))
    expected = [b"%d" % n * (n % 7) if n % 2 == 0 else None for n in range(1000)]
    assert [answer.value if answer.found else None for answer in answers] == expected
    assert list(cache.GetMany(keys=[])) == []
    assert len(list(cache.GetMany(keys=[b"k0"] * 10_000))) == 10_000
    assert code(lambda: cache.GetMany(keys=[b"k0"] * 10_001))[0] == "INVALID_ARGUMENT"


def test_many_large_values(cache):
    """The total size of the values exceeds the limit of unsent bytes."""
    values = [os.urandom(900_000) for _ in range(20)]
    for n, value in enumerate(values):
        cache.write([value], key=b"large%d" % n)
    answers = cache.GetMany(keys=[b"large%d" % n for n in range(20)])
    for value, answer in zip(values, answers, strict=True):
        assert answer.value == value


def test_tags(cache):
    cache.Set(key=b"tagged", value=b"1", tags=[b"news", b"\xffuser 42"])
    cache.write([bytes(200_000)], key=b"large", tags=[b"news"])
    cache.Set(key=b"plain", value=b"1")
    assert cache.outcome(cache.DropTag(tag=b"other")) == "NOT_FOUND"
    assert cache.outcome(cache.DropTag(tag=b"news")) == "DONE"
    assert [cache.Get(key=key).found for key in (b"tagged", b"large", b"plain")] == [False, False, True]
    assert code(lambda: cache.Set(key=b"k", tags=[b"t%d" % n for n in range(8)]))[0] == "INVALID_ARGUMENT"
    for wrong in (b"", b"t" * 251):
        assert code(lambda wrong=wrong: cache.Set(key=b"k", tags=[wrong]))[0] == "INVALID_ARGUMENT"
        assert code(lambda wrong=wrong: cache.DropTag(tag=wrong))[0] == "INVALID_ARGUMENT"


def test_engines_without_tags(start):
    with start("-t", "1", engine="moka", grpc=True) as server, Cache(server.grpc_address) as cache:
        assert cache.outcome(cache.Set(key=b"k", value=b"1")) == "DONE"
        assert code(lambda: cache.Set(key=b"k", tags=[b"t"]))[0] == "UNIMPLEMENTED"
        assert code(lambda: cache.DropTag(tag=b"t"))[0] == "UNIMPLEMENTED"
