"""Tests clients with threads, signals and forks."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import PATIENT, Restartable
from fake import SILENCE, Fake
from server import wait_until

from larder_client import Client, MemcacheError, PooledClient


def together(number, work):
    """Runs `work(n)` for each `n` below `number`, each in a thread of its own. Raises the first exception, if there is
    one."""
    raised = []

    def run(n):
        try:
            work(n)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(number)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if raised:
        raise raised[0]


@pytest.mark.parametrize("size", [1, 7, 64, None])
def test_threads_mix_up_no_values(server, size):
    client = PooledClient(server.address, max_pool_size=size, **PATIENT)

    def work(n):
        chance = random.Random(n)
        for round in range(60):
            key, value = f"key:{n}:{round}", f"{n}:{round}:".encode() * chance.randrange(1, 2000)
            assert client.set(key, value, noreply=False)
            assert client.get(key) == value
            keys = [key, f"none:{n}"]
            assert client.get_many(keys) == {key: value}
            assert client.delete(key, noreply=False)
            assert client.get(key) is None

    together(64, work)
    opened, idle, waiting = client.connections()
    assert opened == idle <= (size or 1) and waiting == 0


@pytest.mark.parametrize("size", [8, None])
def test_threads_mix_up_no_values_while_the_server_restarts(size):
    stop = threading.Event()
    hits = [0] * 16
    with Restartable("memcached") as server:
        client = PooledClient(server.address, max_pool_size=size, timeout=2)

        def work(n):
            # The first thread kills the server.
            if n == 0:
                for _ in range(5):
                    before = sum(hits)
                    wait_until(lambda: sum(hits) > before + 100, "hits after the start")
                    server.kill()
                    server.start()
                stop.set()
            while not stop.is_set():
                try:
                    client.set(f"key{n}", b"%d" % n, noreply=False)
                    value = client.get(f"key{n}")
                except (OSError, MemcacheError):
                    time.sleep(0.001)
                    continue
                assert value in (None, b"%d" % n)
                hits[n] += value is not None

        together(16, work)


def test_threads_may_share_a_client_of_one_connection(server):
    client = Client(server.address, **PATIENT)

    def work(n):
        for _ in range(50):
            client.set(f"key{n}", b"%d" % n, noreply=False)
            assert client.get(f"key{n}") == b"%d" % n

    together(8, work)
    assert client.connections() == (1, 1, 0)


def test_a_client_may_be_closed_while_other_threads_use_it(server):
    client = PooledClient(server.address, max_pool_size=2, **PATIENT)
    stop = threading.Event()

    def work(n):
        if n == 0:
            for _ in range(200):
                client.close()
                time.sleep(0.001)
            stop.set()
        while not stop.is_set():
            client.set(f"key{n}", b"%d" % n, noreply=False)
            assert client.get(f"key{n}") == b"%d" % n

    together(9, work)


@pytest.mark.parametrize("waits_for", ["an answer", "a connection"])
def test_other_threads_run_while_a_thread_waits(waits_for):
    with Fake(SILENCE) as fake:
        client = PooledClient(fake.address, max_pool_size=1, connect_timeout=60, timeout=3)
        number = 1 if waits_for == "an answer" else 2
        over = []

        def wait():
            with pytest.raises(TimeoutError):
                client.get("key")
            over.append(1)

        threads = [threading.Thread(target=wait) for _ in range(number)]
        [thread.start() for thread in threads]
        wait_until(lambda: fake.requests and client.connections()[2] == number - 1, "they wait")
        # If the waiting threads kept the interpreter's lock, this loop would not run until these threads ended.
        for _ in range(100_000):
            pass
        assert not over
        [thread.join() for thread in threads]
        assert len(over) == number


@pytest.mark.parametrize("pooling, connections", [({}, 1), ({"pool_idle_timeout": 60}, 2), ({"max_pool_size": 2}, 2)])
def test_calls_share_a_connection_without_a_pool(pooling, connections):
    with Fake() as fake:
        client = PooledClient(fake.address, timeout=1, **pooling)

        def call(n):
            with pytest.raises(TimeoutError):
                client.get(f"key{n}")

        together(2, call)
        assert fake.accepted == connections


INTERRUPTED = """
import os, signal, sys, threading
from larder_client import PooledClient

# A shell that runs the tests in the background may have set the signal to be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

client = PooledClient(sys.argv[1], max_pool_size=1, timeout=None)
waiting = sys.argv[2] == "a connection"
if waiting:
    threading.Thread(target=client.get, args=("key",), daemon=True).start()
    while client.connections() != (1, 0, 0):
        pass

def tell():
    while client.connections() != (1, 0, waiting):
        pass
    print("waits", flush=True)

try:
    threading.Thread(target=tell, daemon=True).start()
    client.get("key")
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("waits_for", ["an answer", "a connection"])
def test_a_signal_ends_a_wait(waits_for):
    with Fake() as fake:
        command = [sys.executable, "-c", INTERRUPTED, "%s:%d" % fake.address, waits_for]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "waits\n"
            wait_until(lambda: fake.requests, "the request")
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert output == "interrupted\n"


def test_a_call_continues_after_a_signal_handler():
    with Fake(b"END\r\n", SILENCE) as fake:
        handled = []

        def answer(*_):
            handled.append(1)
            if len(fake.requests) == 2:
                fake.connections[0].sendall(b"VALUE key 0 1\r\nx\r\nEND\r\n")
            else:
                signal.setitimer(signal.ITIMER_REAL, 0.1)

        client = PooledClient(fake.address, **PATIENT)
        assert client.get("key") is None
        previous = signal.signal(signal.SIGALRM, answer)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert client.get("key") == b"x"
        finally:
            signal.signal(signal.SIGALRM, previous)
    assert handled


@pytest.mark.parametrize("size", [4, None])
def test_signal_handlers_may_make_calls(size):
    with Fake(b"END\r\n", SILENCE) as fake:
        found = []

        def call(*_):
            if len(fake.requests) < 2:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                return
            # The reply to the interrupted call arrives 0.1 s later. On a shared connection, the reply to the nested
            # call follows that reply.
            answers = threading.Timer(0.1, fake.connections[0].sendall, [b"VALUE key 0 1\r\nx\r\nEND\r\n"])
            fake.answers.append(b"VALUE other 0 1\r\ny\r\nEND\r\n")
            if size is None:
                fake.answers.clear()
                answers.args = [b"VALUE key 0 1\r\nx\r\nEND\r\nVALUE other 0 1\r\ny\r\nEND\r\n"]
            answers.start()
            found.append(client.get("other"))

        client = PooledClient(fake.address, max_pool_size=size, **PATIENT)
        assert client.get("key") is None
        previous = signal.signal(signal.SIGALRM, call)
        start_time = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert client.get("key") == b"x"
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert found == [b"y"]
        assert time.monotonic() - start_time < PATIENT["timeout"] / 2


def test_a_signal_is_handled_in_every_phase_of_a_call():
    rounds = 40
    with Fake(*[SILENCE] * rounds) as fake:
        handled = threading.Semaphore(0)

        def answer():
            for number in range(1, rounds + 1):
                handled.acquire()
                wait_until(lambda: len(fake.requests) == number, "the request")
                fake.connections[0].sendall(b"END\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        client = PooledClient(fake.address, connect_timeout=60, timeout=20)
        previous = signal.signal(signal.SIGALRM, lambda *_: handled.release())
        try:
            thread.start()
            for number in range(rounds):
                # Depending on the round, the signal arrives before the request is sent, while the thread polls, or
                # while it waits without the lock.
                signal.setitimer(signal.ITIMER_REAL, (number + 1) * 5e-6)
                assert client.get("key") is None
        finally:
            signal.signal(signal.SIGALRM, previous)


def in_child(work):
    """Runs `work` in a forked process. Returns the exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sockets():
    """Returns the sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # One of the listed descriptors was opened by `listdir` itself, and is closed now.
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {link for link in found if link.startswith("socket:")}


def test_a_child_process_drops_its_parents_sockets(server):
    before = sockets()
    client = PooledClient(server.address, **PATIENT)
    client.set("key", "parent", noreply=False)
    ours = sockets() - before
    assert len(ours) == 1

    def work():
        assert not ours & sockets()
        assert client.connections() == (0, 0, 0)
        assert client.get("key") == b"parent"
        assert client.connections() == (1, 1, 0)
        client.set("key", "child", noreply=False)

    assert in_child(work) == 0
    assert client.get("key") == b"child"
    assert sockets() - before == ours


def test_parent_and_children_get_their_own_values(server):
    client = PooledClient(server.address, **PATIENT)
    client.set("warm", "up")

    def work(name):
        for n in range(300):
            client.set(name, f"{name}{n}", noreply=False)
            assert client.get(name) == f"{name}{n}".encode()

    children = []
    for n in range(4):
        child = os.fork()
        if child == 0:
            try:
                work(f"child{n}")
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    work("parent")
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4


def test_a_fork_while_other_threads_use_the_client(server):
    client = PooledClient(server.address, max_pool_size=4, **PATIENT)
    stop = threading.Event()

    def work(n):
        if n == 0:
            try:
                for _ in range(20):
                    assert in_child(lambda: client.set("child", "x", noreply=False)) == 0
            finally:
                stop.set()
        while not stop.is_set():
            client.set(f"key{n}", b"%d" % n, noreply=False)
            assert client.get(f"key{n}") == b"%d" % n

    together(5, work)
