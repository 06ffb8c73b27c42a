"""Tests the clients for asyncio with failures, deadlines, cancelled calls and forks."""

import asyncio
import random
import socket
import subprocess
import sys
import time

import pytest
import uvloop
from conftest import PATIENT, Restartable
from fake import CLOSE, FAILED_STORES, RESET, SILENCE, Fake
from server import wait_until

from larder_client import (
    MemcacheError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
)
from larder_client.asyncio import Client

LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=LOOPS)
def run(request):
    """A function that runs a coroutine in a new loop, for each kind of loop."""
    return LOOPS[request.param]


async def until(condition, event):
    """Waits until `condition()` is true. The loop continues to run."""
    await asyncio.to_thread(wait_until, condition, event)


@pytest.mark.parametrize("answer, kind, is_ambiguous", FAILED_STORES)
def test_exceptions_of_a_store(run, answer, kind, is_ambiguous):
    async def main():
        with Fake(answer, b"STORED\r\n") as fake:
            client = Client(fake.address, connect_timeout=60, timeout=2 if answer is SILENCE else 60)
            with pytest.raises(kind) as raised:
                await client.set("key", "x", noreply=False)
            assert type(raised.value) is kind
            assert raised.value.is_ambiguous is is_ambiguous
            assert await client.set("key", "x", noreply=False) is True
            await client.close()

    run(main())


def test_a_wrong_reply_closes_only_its_connection(run):
    async def main():
        wrong = b"VALUE a 0 1\r\na\r\nEND\r\nVALUE x 0 1\r\nx\r\nEND\r\nVALUE c 0 1\r\nc\r\nEND\r\n"
        with Fake(wrong, b"END\r\n") as fake:
            client = Client(fake.address, **PATIENT)
            results = await asyncio.gather(*map(client.get, "abc"), return_exceptions=True)
            assert results[0] == b"a"
            assert [type(result) for result in results[1:]] == [MemcacheUnknownError] * 2
            assert await client.get("d") is None
            assert fake.accepted == 2
            await client.close()

    run(main())


def test_a_truncated_value(run):
    async def main():
        for end in [CLOSE, RESET, SILENCE]:
            with Fake(b"VALUE key 0 100\r\nhalf of it", end) as fake:
                client = Client(fake.address, connect_timeout=60, timeout=2)
                first = asyncio.create_task(client.get("key"))
                await until(lambda: fake.requests, "the first request")
                start_time = time.monotonic()
                second = asyncio.create_task(client.get("other"))
                results = await asyncio.gather(first, second, return_exceptions=True)
                assert time.monotonic() - start_time < 30
                for result in results:
                    assert isinstance(result, (MemcacheUnexpectedCloseError, OSError)), result
                await client.close()

    run(main())


def test_a_late_reply_reaches_no_caller(run):
    async def main():
        with Fake(SILENCE, SILENCE, b"VALUE b 0 1\r\nb\r\nEND\r\n") as fake:
            client = Client(fake.address, **PATIENT)
            given_up = asyncio.create_task(client.get("a"))
            await until(lambda: fake.requests, "the request")
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            late = asyncio.create_task(client.get("a"))
            await until(lambda: len(fake.requests) == 2, "the next request")
            fake.connections[0].sendall(b"VALUE a 0 1\r\n1\r\nEND\r\n")
            fake.connections[0].sendall(b"VALUE a 0 1\r\n2\r\nEND\r\n")
            assert await late == b"2"
            assert await client.get("b") == b"b"
            assert fake.accepted == 1
            await client.close()

    run(main())


def test_a_call_cancelled_before_it_is_sent_is_not_sent(run):
    async def main():
        with Fake(b"STORED\r\n", b"END\r\n") as fake:
            client = Client(fake.address, **PATIENT)
            # Cancels the second call. In the first round, no connection is open. In the second round, the call is
            # cancelled in the iteration that would send it.
            for round in range(2):
                wanted = asyncio.create_task(client.set("a", "1") if round == 0 else client.get("a"))
                given_up = asyncio.create_task(client.set("b", "2"))
                await asyncio.sleep(0)
                given_up.cancel()
                await wanted
                assert given_up.cancelled()
            assert b"".join(fake.requests) == b"set a 0 0 1\r\n1\r\nget a\r\n"
            await client.close()

    run(main())


def test_a_silent_connection_is_closed_after_a_cancelled_call(run):
    async def main():
        with Fake(SILENCE, SILENCE, b"END\r\n") as fake:
            client = Client(fake.address, **PATIENT)
            given_up = asyncio.create_task(client.get("a"))
            await until(lambda: fake.requests, "the request")
            given_up.cancel()
            # This call ends before its own deadline of 60 s, because after a cancelled call, the client closes a
            # connection on which no reply has arrived for a second.
            start_time = time.monotonic()
            with pytest.raises(TimeoutError):
                await client.set("b", "x")
            assert 0.5 <= time.monotonic() - start_time < 30
            assert await client.get("c") is None
            assert fake.accepted == 2
            await client.close()

    run(main())


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_cancelled_calls_mix_up_no_values(kind, server):
    """Cancels calls at random moments. Each value contains its key."""

    async def work(client, n):
        chance = random.Random(n)
        kept = 0
        for round in range(100):
            key = f"key:{n}:{round % 7}"
            value = f"{key}:".encode() * chance.choice([1, 20, 3000])
            for call, is_right in [
                (client.set(key, value, noreply=False), lambda stored: stored is True),
                (client.get(key), lambda found: found is None or found == key.encode() + b":" + found[len(key) + 1 :]),
                (client.get_many([key, "none"]), lambda found: set(found) <= {key} and check(found.values(), key)),
                (client.gets(key), lambda found: check([found[0]], key)),
            ]:
                task = asyncio.create_task(call)
                turns = chance.choice([0, 1, 2, 3, 5, None, None])
                if turns is None:
                    assert is_right(await task)
                    kept += 1
                    continue
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    assert is_right(await task)
                except asyncio.CancelledError:
                    assert task.cancelled()
        return kept

    def check(values, key):
        return all(value is None or value.startswith(key.encode() + b":") for value in values)

    async def main():
        async with Client(server.address, **PATIENT) as client:
            kept = await asyncio.gather(*(work(client, n) for n in range(32)))
            assert sum(kept) > 500
            assert client._channel._connection is not None

    LOOPS[kind](main())


def test_timeouts_are_kept(run):
    async def main():
        with Fake() as fake:
            client = Client(fake.address, timeout=0.3)

            async def call(begin):
                start_time = time.monotonic()
                with pytest.raises(TimeoutError):
                    await begin()
                assert 0.3 <= time.monotonic() - start_time < 30

            many = [call(lambda: client.set_many({"a": 1, "b": 2})), *(call(lambda: client.get("key")) for _ in range(3))]
            await asyncio.gather(*many)
            await client.close()

    run(main())


def test_connecting_respects_its_time_limit(run):
    async def main():
        # The server never accepts, and its backlog is full.
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            client = Client(listener.getsockname(), connect_timeout=0.2, timeout=60)
            start_time = time.monotonic()
            with pytest.raises(TimeoutError) as raised:
                await client.set("key", "x")
            assert raised.value.is_ambiguous is False
            # uvloop's clock counts whole milliseconds, so its timers may fire up to a millisecond early.
            assert 0.19 <= time.monotonic() - start_time < 30
            client = Client(listener.getsockname(), connect_timeout=60, timeout=0.2)
            with pytest.raises(TimeoutError):
                await client.get("key")
            assert time.monotonic() - start_time < 30
            await client.close()
            for filler in fillers:
                filler.close()

    run(main())


def test_exceptions_are_misses_with_ignore_exc(run):
    async def main():
        with Fake(b"NONSENSE\r\n", CLOSE, b"NONSENSE\r\n", b"NONSENSE\r\n") as fake:
            client = Client(fake.address, ignore_exc=True, **PATIENT)
            assert await client.get("key", "default") == "default"
            assert await client.get_many(["key"]) == {}
            assert await client.gets("key") == (None, None)
            assert await client.get("not a key", "default") == "default"
            with pytest.raises(MemcacheUnknownError):
                await client.set("key", "x")
        assert await Client("127.0.0.1:1", ignore_exc=True).stats() == {}

    run(main())


def test_unreachable_servers(run):
    async def main():
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            client = Client(unused.getsockname(), **PATIENT)
            with pytest.raises(ConnectionRefusedError) as raised:
                await client.set("key", "x")
            assert raised.value.is_ambiguous is False
            # All calls that wait for the connection fail.
            calls = await asyncio.gather(*(client.get("key") for _ in range(9)), return_exceptions=True)
            assert {type(error) for error in calls} == {ConnectionRefusedError}
            # After several failures, calls fail at once for a short time. The other calls try to connect.
            messages = set()
            for _ in range(10):
                with pytest.raises(ConnectionError) as raised:
                    await client.get("key")
                messages.add("unavailable after several failures" in str(raised.value))
            assert messages == {True, False}
        with pytest.raises(OSError):
            await Client("/no/such/socket").get("key")
        with pytest.raises(OSError):
            await Client("no-such-host.invalid").get("key")

    run(main())


@pytest.mark.parametrize("kind", ["larderd", "memcached"])
def test_an_idle_connection_closed_by_the_server_is_replaced(run, kind):
    async def main():
        with Restartable(kind) as server:
            client = Client(server.address, **PATIENT)
            assert await client.set("key", "x", noreply=False)
            # The loop does not run before the next call, so the client has not yet detected that the server closed the
            # connection.
            server.kill()
            server.start()
            assert await client.set("key", "y", noreply=False) is True
            assert await client.get("key") == b"y"
            await client.close()

    run(main())


@pytest.mark.parametrize("kind", ["larderd", "memcached"])
def test_a_restarted_server_under_load(run, kind):
    """Checks that each task reads either its own stored values or misses."""

    async def main():
        with Restartable(kind) as server:
            client = Client(server.address, connect_timeout=60, timeout=2)
            hits, is_over = [0] * 16, False

            async def work(n):
                while not is_over:
                    try:
                        await client.set(f"key{n}", b"%d" % n, noreply=False)
                        value = await client.get(f"key{n}")
                    except (OSError, MemcacheError):
                        await asyncio.sleep(0.001)
                        continue
                    assert value in (None, b"%d" % n)
                    hits[n] += value is not None

            tasks = [asyncio.create_task(work(n)) for n in range(16)]
            for _ in range(3):
                before = sum(hits)
                await until(lambda: sum(hits) > before + 100, "hits after the start")
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            before = sum(hits)
            await until(lambda: sum(hits) > before + 100, "hits after the last start")
            is_over = True
            await asyncio.gather(*tasks)
            await client.close()

    run(main())


# Cancels stores of 1 GB in total to a server that reads nothing, and prints the growth of the process in bytes.
DEAF = """
import asyncio, os, sys, uvloop
from larder_client.asyncio import Client

def memory():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main():
    client = Client(sys.argv[2], connect_timeout=60, timeout=60)
    value = b"x" * 100_000
    before = memory()

    async def give_up():
        call = asyncio.create_task(client.set("key", value))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    for _ in range(200):
        await asyncio.gather(*(give_up() for _ in range(50)))
    print(memory() - before)
    await client.close()

{"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[1]](main())
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_cancelled_stores_to_a_server_that_never_reads_use_no_memory(loop):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = "{}:{}".format(*deaf.getsockname())
        command = [sys.executable, "-c", DEAF, loop, address]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 100_000_000


def test_calls_end_in_time_while_the_server_reads_nothing(run):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            client = Client(deaf.getsockname(), connect_timeout=60, timeout=0.5)
            start_time = time.monotonic()
            calls = []
            for _ in range(100):
                calls += [asyncio.create_task(client.set("key", b"x" * 100_000)) for _ in range(2)]
                await asyncio.sleep(0)
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - start_time < 30
            assert {type(result) for result in results} == {TimeoutError}
            # `is_ambiguous` is False for unsent changes, because they have not happened.
            assert {result.is_ambiguous for result in results} == {True, False}
            await client.close()

    run(main())


FORK = """
import asyncio, os, sys
from larder_client.asyncio import Client

client = Client(sys.argv[1], timeout=60, connect_timeout=60, default_noreply=False)
parent = os.getpid()

async def use(name):
    assert await client.set(name, name)
    assert await client.get(name) == name.encode()

async def main():
    await use("before")
    connection = client._channel._connection
    child = os.fork()
    if child == 0:
        return
    for n in range(200):
        await use(f"parent{n}")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for n in range(200):
        await use(f"parent{n}")
    assert client._channel._connection is connection
    await client.close()

async def child():
    assert client._channel._connection is None
    for n in range(200):
        await use(f"child{n}")
    await client.close()

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
if os.getpid() != parent:
    asyncio.run(child())
    # Exits without closing the loop, which shares its epoll object with the parent's.
    os._exit(0)
loop.close()
print("done")
"""


def test_a_child_process_has_its_own_connections(server):
    result = subprocess.run([sys.executable, "-c", FORK, server.address], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stdout == "done\n", result.stderr
