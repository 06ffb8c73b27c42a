"""Tests the clients for asyncio with larderd and memcached: the results of calls and the stored values."""

import asyncio
import functools
import os
import socket
import tempfile
import threading
import time
from contextlib import ExitStack

import pymemcache
import pymemcache.serde
import pytest
import uvloop
from conftest import PATIENT, start
from fake import SILENCE, Fake
from server import wait_until

import larder_client
from larder_client import MemcacheClientError, MemcacheError, MemcacheIllegalInputError, PooledClient
from larder_client.asyncio import Client, HashClient
from larder_client.serde import compressed_serde, pickle_serde

LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=LOOPS)
def run(request):
    """A function that runs a coroutine in a new loop, for each kind of loop."""
    return LOOPS[request.param]


@pytest.fixture
def connected(run, server):
    """A function that runs a coroutine function with a client of an empty server."""

    def with_client(work, **settings):
        async def main():
            async with Client(server.address, **{"default_noreply": False, **PATIENT, **settings}) as client:
                await client.flush_all()
                return await work(client)

        return run(main())

    return with_client


def with_client(test):
    """Converts a coroutine function into a test."""

    # The wrapper keeps its own signature, because pytest reads the names of fixtures from the signature.
    @functools.wraps(test, assigned=("__name__", "__doc__"), updated=())
    def wrapper(connected):
        connected(test)

    del wrapper.__wrapped__
    return wrapper


@with_client
async def test_values_of_each_length_and_any_bytes(client):
    for length in [0, 1, 100, 4096, 60_000, 900_000]:
        value = (bytes(range(256)) * (length // 256 + 1))[:length]
        assert await client.set("key", value) is True
        assert await client.get(b"key") == value


@with_client
async def test_keys_are_text_or_bytes(client):
    for key in ["key", b"key", "k" * 250, b"\xff\x01", "%s"]:
        assert await client.set(key, key) is True
        assert await client.get(key) == (key if isinstance(key, bytes) else key.encode())
    for key in ["", "k" * 251, "a b", "a\n", b"\t", "a\0", "schlüssel"]:
        with pytest.raises(MemcacheIllegalInputError) as raised:
            await client.get(key)
        assert raised.value.is_ambiguous is False
    for key in [None, 1, ["key"]]:
        with pytest.raises(TypeError):
            await client.get(key)


def test_unicode_keys_prefixes_and_encodings(run, server):
    async def main():
        settings = {"allow_unicode_keys": True, "key_prefix": "p:", "encoding": "utf8", **PATIENT}
        async with Client((server.host, server.port), **settings) as ours, Client(server.address, **PATIENT) as plain:
            await ours.set("schlüssel", "größe")
            assert await plain.get("p:schlüssel".encode()) == "größe".encode()
            assert await ours.get_many(["schlüssel", "other"]) == {"schlüssel": "größe".encode()}
            assert ours.check_key("ü") == "p:ü".encode()
            with pytest.raises(MemcacheIllegalInputError):
                await plain.set("key", "größe")

    run(main())


@with_client
async def test_stores_with_conditions(client):
    assert await client.replace("key", b"1") is False
    assert await client.append("key", b"1") is False
    assert await client.prepend("key", b"1") is False
    assert await client.add("key", b"1") is True
    assert await client.add("key", b"2") is False
    assert await client.replace("key", b"2") is True
    assert await client.append("key", b"3") is True
    assert await client.prepend("key", b"1") is True
    assert await client.get("key") == b"123"


@with_client
async def test_cas(client):
    assert await client.gets("key") == (None, None)
    assert await client.gets("key", "value", "cas") == ("value", "cas")
    assert await client.cas("key", b"1", b"1") is None
    await client.set("key", b"1")
    value, cas = await client.gets("key")
    assert value == b"1" and cas.isdigit()
    assert await client.cas("key", b"2", cas) is True
    assert await client.cas("key", b"3", cas) is False
    assert await client.cas("key", b"3", cas, noreply=True) is True
    assert await client.cas("key", b"3", int((await client.gets("key"))[1])) is True
    assert await client.get("key") == b"3"
    for cas in [None, "x", "", 1.5, -1]:
        with pytest.raises(MemcacheIllegalInputError):
            await client.cas("key", b"5", cas)


@with_client
async def test_several_keys(client):
    values = {f"key{n}": b"%d" % n for n in range(250)}
    assert await client.set_many(values) == []
    assert await client.get_many(values) == values
    assert await client.get_many([b"key1", "none", "key2"]) == {b"key1": b"1", "key2": b"2"}
    found = await client.gets_many(["key1"])
    assert found["key1"][0] == b"1" and found["key1"][1].isdigit()
    assert await client.delete_many(["key1", "none", b"key2"]) is True
    assert await client.get_multi(["key1", "key2", "key3"]) == {"key3": b"3"}
    assert await client.get_many([]) == await client.gets_many([]) == {}
    assert await client.set_multi({}) == [] and await client.delete_multi([]) is True
    large = {f"key{n}": bytes([n]) * 500_000 for n in range(20)}
    assert await client.set_many(large) == []
    assert await client.get_many(key for key in large) == large


@with_client
async def test_counting(client):
    assert await client.incr("n", 1) is None
    await client.set("n", 10)
    assert await client.incr("n", 5) == 15
    assert await client.decr("n", 20) == 0
    assert await client.incr("n", 2**64 - 1) == 2**64 - 1
    assert await client.incr("n", 2) == 1
    assert await client.incr("n", 1, noreply=True) is None
    assert int(await client.get("n")) == 2
    await client.set("text", "x")
    for key, by in [("text", 1), ("n", -1), ("n", 2**64)]:
        with pytest.raises(MemcacheClientError):
            await client.incr(key, by)
    with pytest.raises(MemcacheIllegalInputError):
        await client.decr("n", "1")


@with_client
async def test_removal_and_expiry(client):
    assert await client.delete("key") is False
    await client.set("key", "x")
    assert await client.delete("key") is True
    assert await client.get("key") is None
    assert await client.get("key", "default") == "default"
    assert await client.touch("key", 60) is False
    await client.set("never", "x", expire=0)
    await client.set("at-once", "x", expire=-1)
    await client.set("unix-time", "x", expire=int(time.time()) + 3600)
    assert await client.get_many(["never", "at-once", "unix-time"]) == {"never": b"x", "unix-time": b"x"}
    assert await client.touch("never", -1) is True
    assert await client.get("never") is None
    assert await client.gat("unix-time", 60) == b"x"
    assert (await client.gats("unix-time", 60))[1].isdigit()
    assert await client.gat("none", 60, "default") == "default"
    assert await client.gats("none", 60, "value", "cas") == ("value", "cas")
    assert await client.gat("unix-time", -1) == b"x"
    assert await client.get("unix-time") is None
    for expire in [1.5, "1", [1]]:
        with pytest.raises(MemcacheIllegalInputError):
            await client.set("key", "x", expire=expire)


def test_results_with_noreply(connected):
    async def work(client):
        assert client.default_noreply is True
        assert await client.replace("key", "x") is True
        assert await client.add("key", "x") is True
        assert await client.add("key", "x") is True
        assert await client.add("key", "x", noreply=False) is False
        assert await client.touch("none") is True
        assert await client.delete("none") is True
        assert await client.delete("none", noreply=False) is False
        assert await client.set_many({"key": "y"}) == []

    connected(work, default_noreply=True)


class Reversing:
    """A serde that stores reversed text with flags."""

    def serialize(self, key, value):
        return value[::-1].encode(), 7 if key == "seven" else 2**32 - 1

    def deserialize(self, key, value, flags):
        return key, value.decode()[::-1], flags


def test_conversion(connected, server):
    async def work(client):
        await client.set("seven", "abc")
        await client.set("flags", "x", flags=5)
        assert await client.get("seven") == ("seven", "abc", 7)
        assert (await client.gets("seven"))[0] == await client.gat("seven") == ("seven", "abc", 7)
        expected = {"seven": ("seven", "abc", 7), "flags": ("flags", "x", 5)}
        assert await client.get_many(["seven", "none", "flags"]) == expected
        assert (await client.gets_many(["seven"]))["seven"][0] == ("seven", "abc", 7)
        async with Client(server.address, **PATIENT) as plain:
            assert await plain.get("seven") == b"cba"

    connected(work, serde=Reversing())


def test_functions_convert_too(connected):
    async def work(client):
        await client.set("key", [1, "x"])
        assert await client.get("key") == ([1, "x"], 1)

    connected(
        work, serializer=lambda key, value: (repr(value), 1), deserializer=lambda key, value, flags: (eval(value), flags)
    )


def test_exceptions_of_a_conversion_are_raised_in_the_caller(connected, server):
    class Failing:
        def serialize(self, key, value):
            raise LookupError(value)

        def deserialize(self, key, value, flags):
            raise LookupError(value)

    async def work(client):
        with pytest.raises(LookupError, match="x"):
            await client.set("key", "x")
        async with Client(server.address, **PATIENT) as plain:
            await plain.set("key", "y")
        with pytest.raises(LookupError, match="y"):
            await client.get("key")
        assert await client.get("none") is None
        forgiving = Client(server.address, serde=Failing(), ignore_exc=True, **PATIENT)
        assert await forgiving.get("key", "default") == "default"
        assert await forgiving.get_many(["key"]) == {}
        await forgiving.close()

    connected(work, serde=Failing())


@pytest.mark.parametrize("serde", [pickle_serde, compressed_serde])
def test_pickled_and_compressed_values(connected, server, serde):
    name = "pickle_serde" if serde is pickle_serde else "compressed_serde"
    theirs = pymemcache.PooledClient((server.host, server.port), serde=getattr(pymemcache.serde, name))

    async def work(client):
        for value in [b"x", "größe", 5, -(10**30), 1.5, None, True, [1, {"a": (2,)}], "long " * 1000]:
            await client.set("ours", value)
            theirs.set("theirs", value, noreply=False)
            assert theirs.get("ours") == value
            found = await client.get("theirs", "default")
            assert found == value and type(found) is type(value)

    connected(work, serde=serde)


def test_version_and_statistics(connected, server):
    async def work(client):
        page = await client.stats()
        assert page[b"pid"] == server.pid and isinstance(page[b"rusage_user"], float)
        assert await client.version() == page[b"version"]
        assert (await client.stats("settings"))[b"growth_factor"] == 1.25
        with pytest.raises(MemcacheIllegalInputError):
            await client.stats("detail dump")
        assert await client.flush_all(delay=3600) is True

    connected(work)


@with_client
async def test_calls_of_many_tasks(client):
    """Makes more concurrent calls than a connection may have under way."""
    values = {f"key{n}": b"%d" % n for n in range(3000)}
    assert await asyncio.gather(*(client.set(key, value) for key, value in values.items())) == [True] * 3000
    assert await asyncio.gather(*map(client.get, values)) == list(values.values())
    task = asyncio.create_task(client.get("key1"))
    assert await task == b"1"


def test_the_calls_of_one_iteration_leave_in_one_write(run):
    async def main():
        answers = b"END\r\nNOT_FOUND\r\nEND\r\n"
        with Fake(answers, answers) as fake:
            async with Client(fake.address, default_noreply=False, **PATIENT) as client:
                for _ in range(2):
                    calls = [client.get("b"), client.delete("c"), client.get_many(["d", "e"])]
                    assert await asyncio.gather(*calls) == [None, False, {}]
        assert fake.requests == [b"get b\r\ndelete c\r\nget d e\r\n"] * 2

    run(main())


def test_large_values_do_not_block_the_loop(connected):
    async def work(client):
        iterations = 0

        async def count():
            nonlocal iterations
            while True:
                iterations += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        value = os.urandom(1_000_000)
        await asyncio.gather(*(client.set(f"key{n}", value) for n in range(10)))
        assert await asyncio.gather(*(client.get(f"key{n}") for n in range(10))) == [value] * 10
        counting.cancel()
        assert iterations > 10

    connected(work)


def test_unix_sockets_and_names(run, server):
    async def main():
        async with Client(f"localhost:{server.port}", **PATIENT) as client:
            await client.set("key", "x")
            assert await client.get("key") == b"x"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "socket")
            listener = await asyncio.start_unix_server(echo_misses, path)
            async with Client(path, **PATIENT) as client:
                assert await client.get("key") is None
            listener.close()

    async def echo_misses(reader, writer):
        while await reader.readline():
            writer.write(b"END\r\n")
        writer.close()

    run(main())


def test_a_client_belongs_to_one_loop_at_a_time(run, server):
    client = Client(server.address, **PATIENT)

    async def use():
        await client.set("key", "x")
        return await client.get("key")

    # Each loop ends while the client is still open.
    assert run(use()) == b"x"
    assert run(use()) == b"x"

    async def use_in_thread():
        await use()
        raised = []

        def use_in_other_thread():
            with pytest.raises(RuntimeError, match="another event loop") as error:
                asyncio.run(use())
            raised.append(error)

        thread = threading.Thread(target=use_in_other_thread)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert raised
        assert await use() == b"x"
        await client.close()

    run(use_in_thread())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_call_in_a_stopped_loop_ends(new_loop):
    with Fake(SILENCE) as fake:
        client = Client(fake.address, **PATIENT)
        first, second = new_loop(), new_loop()
        call = first.create_task(client.get("key"))
        first.run_until_complete(asyncio.to_thread(wait_until, lambda: fake.requests, "the request"))
        fake.answers = [b"END\r\n"]
        assert second.run_until_complete(client.get("key")) is None
        with pytest.raises(ConnectionAbortedError):
            first.run_until_complete(call)
        second.run_until_complete(client.close())
        first.close()
        second.close()


def test_a_closed_client_opens_a_new_connection(connected):
    async def work(client):
        await client.set("key", "x")
        await client.close()
        assert await client.get("key") == b"x"
        call = asyncio.create_task(client.get("key"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionAbortedError):
            await call

    connected(work)


@pytest.fixture(scope="module")
def addresses():
    with ExitStack() as stack:
        servers = [stack.enter_context(start(kind)) for kind in ["larderd", "memcached", "larderd"]]
        yield [(server.host, server.port) for server in servers]


def test_several_servers(run, addresses):
    threads = larder_client.HashClient(addresses, key_prefix="p:", **PATIENT)
    for address in addresses:
        PooledClient(address, **PATIENT).flush_all()

    async def main():
        async with HashClient(addresses, key_prefix="p:", default_noreply=False, **PATIENT) as client:
            values = {f"key{n}": b"%d" % n for n in range(300)}
            assert await client.set_many(values) == []
            assert threads.get_many(values) == values
            assert await client.get_many(values) == values
            assert (await client.gets_many(["key1"]))["key1"][0] == b"1"
            assert await client.get("key1") == b"1" and await client.get("none", 5) == 5
            assert await client.add("key1", 1) is False and await client.set("key1", 1) is True
            assert await client.incr("key1", 1) == 2 and await client.touch("key1") is True
            assert await client.delete("key1") is True and await client.delete("key1") is False
            assert await client.delete_many(["key2", "key3"]) is True
            assert await client.get_many(["key1", "key2", "key3", "key4"]) == {"key4": b"4"}
            with pytest.raises(MemcacheIllegalInputError):
                await client.get("not a key")
            assert await client.flush_all() is True
            assert await client.get_many(values) == {}
            client.remove_server(addresses[0])
            assert await client.set_many(values) == [] and await client.get_many(values) == values
        with pytest.raises(MemcacheError):
            await HashClient([]).get("key")

    run(main())


def test_one_failing_server_of_several(run, addresses):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = [*addresses[:2], unused.getsockname()]
        keys = [f"key{n}" for n in range(100)]

        async def main():
            async with HashClient(servers, default_noreply=False, **PATIENT) as client:
                with pytest.raises(OSError):
                    await client.set_many(dict.fromkeys(keys, "x"))
                with pytest.raises(OSError):
                    await client.get_many(keys)
            async with HashClient(servers, ignore_exc=True, default_noreply=False, **PATIENT) as client:
                failed = await client.set_many(dict.fromkeys(keys, "x"))
                assert 0 < len(failed) < 100
                assert len(await client.get_many(keys)) == 100 - len(failed)
                assert await client.get(failed[0], 5) == 5
                assert await client.set(failed[0], "x") is False
                assert await client.delete(failed[0]) is False

        run(main())
