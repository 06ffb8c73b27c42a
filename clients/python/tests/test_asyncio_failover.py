"""Tests the failover of the asyncio client of several servers."""

import asyncio
import time

import pytest
from conftest import PATIENT, Restartable, start
from fake import CLOSE, Fake, full_backlog

from larder_client import MemcacheError, MemcacheUnexpectedCloseError
from larder_client import asyncio as clients

KEYS = [f"key{n}" for n in range(60)]


def name_of(server):
    return "{}:{}".format(*server.address)


def test_calls_move_without_errors():
    async def main():
        with Restartable("larderd") as one, Restartable("memcached") as two, Restartable("larderd") as three:
            servers = [server.address for server in [one, two, three]]
            async with clients.HashClient(servers, failover=True, default_noreply=False, **PATIENT) as client:
                assert await client.set_many(dict.fromkeys(KEYS, "old")) == []
                lost = [key for key in KEYS if client.hasher.get_node(key) == name_of(two)]
                assert 5 < len(lost) < 60
                two.kill()
                # No call fails: neither the first calls to the dead server, nor later calls that probe it.
                assert await asyncio.gather(*map(client.get, lost)) == [None] * len(lost)
                assert await client.delete_many(lost) is True
                assert await client.get_many(KEYS) == {key: b"old" for key in KEYS if key not in lost}
                for _ in range(60):
                    assert await asyncio.gather(*(client.set(key, "moved") for key in lost)) == [True] * len(lost)
                    assert await client.set_many(dict.fromkeys(lost, "moved")) == []
                    assert await client.get_many(lost) == dict.fromkeys(lost, b"moved")
                    assert await client.gets_many(lost[:1]) == {lost[0]: (b"moved", (await client.gets(lost[0]))[1])}
                    assert await client.incr("missing", 1) is None
                    await asyncio.sleep(0.02)
                for server in [one, three]:
                    async with clients.Client(server.address, **PATIENT) as other:
                        assert 0 < len(await other.get_many(lost)) < len(lost)
                two.start()
                async with clients.Client(two.address, **PATIENT) as own:
                    deadline = time.monotonic() + 60
                    while await own.get(lost[0]) != b"back":
                        assert await client.set(lost[0], "back") is True
                        assert time.monotonic() < deadline
                        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_without_a_working_server():
    async def main():
        servers = ["127.0.0.1:1", "127.0.0.1:2"]
        async with clients.HashClient(servers, failover=True, **PATIENT) as client:
            for call in [client.get("a"), client.set("a", 1), client.get_many(["a", "b"]), client.set_many({"a": 1})]:
                with pytest.raises(OSError, match="Connection refused"):
                    await call
        async with clients.HashClient(servers, failover=True, ignore_exc=True, **PATIENT) as client:
            assert await client.get("a", "default") == "default"
            assert await client.set("a", 1) is False
            assert sorted(await client.set_many({"a": 1, "b": 2})) == ["a", "b"]
            assert await client.get_many(["a", "b"]) == {}
            assert await client.delete_many(["a"]) is True
        with pytest.raises(MemcacheError, match="there are no servers"):
            await clients.HashClient([], failover=True).get("a")

    asyncio.run(main())


def test_changes_that_may_have_happened_are_not_repeated():
    async def main():
        with Fake(CLOSE) as closing, Fake() as silent, start("larderd") as working:
            server = working.host, working.port
            for fake, timeout, error in [(closing, 60, MemcacheUnexpectedCloseError), (silent, 0.3, TimeoutError)]:
                settings = {"failover": True, "timeout": timeout, "default_noreply": False}
                async with clients.HashClient([fake.address, server], **settings) as client:
                    key = next(key for key in KEYS if client.hasher.get_node(key) == name_of(fake))
                    with pytest.raises(error) as failure:
                        await client.set(key, "x")
                    assert failure.value.is_ambiguous
                async with clients.Client(server) as other:
                    assert await other.get(key) is None

    asyncio.run(main())


def test_a_server_that_opens_no_connection():
    async def main():
        with full_backlog() as address, start("larderd") as working:
            servers = [address, (working.host, working.port)]
            async with clients.HashClient(servers, failover=True, timeout=60, connect_timeout=0.2) as client:
                assert await client.set_many(dict.fromkeys(KEYS, "x"), noreply=False) == []
                assert await client.get_many(KEYS) == dict.fromkeys(KEYS, b"x")

    asyncio.run(main())


def test_a_removed_server_gets_no_calls():
    async def main():
        with start("larderd") as one, start("larderd") as two:
            servers = ["127.0.0.1:1", *((server.host, server.port) for server in [one, two])]
            async with clients.HashClient(servers, failover=True, default_noreply=False, **PATIENT) as client:
                assert await client.set_many(dict.fromkeys(KEYS, "x")) == []
                client.remove_server(servers[1])
                assert await client.set_many(dict.fromkeys(KEYS, "y")) == []
                assert await client.get_many(KEYS) == dict.fromkeys(KEYS, b"y")
            async with clients.Client(servers[1], **PATIENT) as other:
                assert set((await other.get_many(KEYS)).values()) == {b"x"}

    asyncio.run(main())
