"""Tests that a server fault raises the right exception, and that the client continues to work after the fault."""

import signal
import socket
import threading
import time

import pytest
from conftest import PATIENT, Restartable
from fake import CLOSE, FAILED_STORES, SILENCE, Fake
from server import wait_until

from larder_client import (
    Client,
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
    PooledClient,
)


@pytest.mark.parametrize("answer, kind, is_ambiguous", FAILED_STORES)
def test_exceptions_of_a_store(answer, kind, is_ambiguous):
    with Fake(answer, b"STORED\r\n") as fake:
        client = Client(fake.address, connect_timeout=60, timeout=2 if answer is SILENCE else 60)
        with pytest.raises(kind) as raised:
            client.set("key", "x", noreply=False)
        assert type(raised.value) is kind
        assert raised.value.is_ambiguous is is_ambiguous
        assert client.set("key", "x", noreply=False) is True


def test_the_hierarchy_of_exceptions():
    for kind, parent in [
        (MemcacheClientError, MemcacheError),
        (MemcacheUnknownCommandError, MemcacheClientError),
        (MemcacheIllegalInputError, MemcacheClientError),
        (MemcacheServerError, MemcacheError),
        (MemcacheUnknownError, MemcacheError),
        (MemcacheUnexpectedCloseError, MemcacheServerError),
    ]:
        assert issubclass(kind, parent) and kind.__module__ == "larder_client"
    assert socket.timeout is TimeoutError
    with Fake(b"SERVER_ERROR out of memory storing object\r\n") as fake:
        with pytest.raises(MemcacheServerError) as raised:
            Client(fake.address, **PATIENT).set("key", "x")
    assert raised.value.args == (b"out of memory storing object",)


def test_a_value_of_another_key_is_an_error():
    with Fake(b"VALUE other 0 1\r\nx\r\nEND\r\n") as fake:
        client = Client(fake.address, **PATIENT)
        with pytest.raises(MemcacheUnknownError):
            client.get("key")
        assert client.connections()[0] == 0


def test_a_late_reply_reaches_no_caller():
    late = b"VALUE key 0 1\r\n1\r\nEND\r\n"
    with Fake(SILENCE, b"END\r\n") as fake:
        client = Client(fake.address, connect_timeout=60, timeout=2)
        with pytest.raises(TimeoutError):
            client.get("key")
        fake.connections[0].sendall(late)
        assert client.get("key") is None
        assert fake.accepted == 2


def test_timeouts_are_kept():
    with Fake() as fake:
        client = Client(fake.address, timeout=0.3)
        start_time = time.monotonic()
        for call in [lambda: client.get("key"), lambda: client.set_many({"a": 1, "b": 2})]:
            with pytest.raises(TimeoutError):
                call()
        assert 0.6 <= time.monotonic() - start_time < 30


def test_a_pool_without_a_free_connection_is_a_timeout():
    with Fake() as fake:
        client = PooledClient(fake.address, max_pool_size=1, connect_timeout=60, timeout=5)
        messages = []

        def call():
            with pytest.raises(TimeoutError) as raised:
                client.get("key")
            messages.append(str(raised.value))

        def run_other(*_):
            # The interrupted call keeps its connection until this handler returns, even after the call's own deadline.
            other = threading.Thread(target=call)
            other.start()
            wait_until(lambda: client.connections() == (1, 0, 1), "one thread waits for the other")
            other.join()

        def interrupt():
            wait_until(lambda: fake.requests, "the request of the first call")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

        start_time = time.monotonic()
        previous = signal.signal(signal.SIGUSR1, run_other)
        try:
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            call()
            interrupting.join()
        finally:
            signal.signal(signal.SIGUSR1, previous)
        assert time.monotonic() - start_time < 30
        assert ["connections of the pool were in use" in message for message in messages] == [True, False]
        assert fake.accepted == 1


def test_an_administrative_command_that_is_not_answered_is_ambiguous():
    with Fake(CLOSE) as fake:
        with pytest.raises(MemcacheUnexpectedCloseError) as raised:
            Client(fake.address, **PATIENT).raw_command("cache_memlimit 64")
        assert raised.value.is_ambiguous is True


def test_exceptions_are_misses_with_ignore_exc():
    with Fake(b"NONSENSE\r\n", CLOSE, b"NONSENSE\r\n", b"NONSENSE\r\n") as fake:
        client = PooledClient(fake.address, ignore_exc=True, **PATIENT)
        assert client.get("key", "default") == "default"
        assert client.get_many(["key"]) == {}
        assert client.gets("key") == (None, None)
        assert client.get("not a key", "default") == "default"
        with pytest.raises(MemcacheUnknownError):
            client.set("key", "x")
    with pytest.raises(MemcacheIllegalInputError):
        Client("localhost", ignore_exc=True).get("not a key")
    assert Client("127.0.0.1:1", ignore_exc=True).stats() == {}


def test_unreachable_servers():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(unused.getsockname(), connect_timeout=60, timeout=60)
        with pytest.raises(ConnectionRefusedError) as raised:
            client.set("key", "x")
        assert raised.value.is_ambiguous is False
        # After several failures, calls fail at once for a short time.
        for _ in range(10):
            with pytest.raises(ConnectionError):
                client.get("key")
    with pytest.raises(OSError):
        Client("/no/such/socket").get("key")
    with pytest.raises(OSError):
        Client("no-such-host.invalid").get("key")


@pytest.mark.parametrize("kind", ["larderd", "memcached"])
def test_a_restarted_server(kind):
    with Restartable(kind) as server:
        client = PooledClient(server.address, **PATIENT)
        assert client.set("key", "x", noreply=False)
        server.kill()
        for _ in range(10):
            with pytest.raises((OSError, MemcacheUnexpectedCloseError)):
                client.set("key", "y", noreply=False)
        server.start()
        start_time = time.monotonic()
        while True:
            try:
                assert client.set("key", "z", noreply=False) is True
                break
            except ConnectionError:
                assert time.monotonic() - start_time < 30
                time.sleep(0.01)
        assert client.get("key") == b"z"


@pytest.mark.parametrize("kind", ["larderd", "memcached"])
def test_an_idle_connection_closed_by_the_server_is_replaced(kind):
    with Restartable(kind) as server:
        client = PooledClient(server.address, **PATIENT)
        assert client.set("key", "x", noreply=False)
        server.kill()
        server.start()
        assert client.get("key") is None
        assert client.set("key", "x", noreply=False) is True
