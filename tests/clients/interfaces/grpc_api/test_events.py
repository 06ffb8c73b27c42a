"""`Watch`: the events of items, and the limits of watches."""

import socket
import threading
import time

import grpc
import pymemcache
import pytest

from grpc_client import Cache, code, seconds
from server import wait_until

pytestmark = pytest.mark.larder


def watched(cache, count, act, **filter):
    """Returns the first `count` events that `act` causes."""
    stream = cache.Watch(**filter)
    # A watch starts some time after the call, and the server does not report its start. This function therefore repeats
    # a change of the key `probe` until it receives an event for this key.
    seen, ready = [], threading.Event()

    def collect():
        for message in stream:
            if message.event.key == b"probe":
                ready.set()
            else:
                seen.append(message)
                if len(seen) == count:
                    return

    reader = threading.Thread(target=collect)
    reader.start()

    def has_started():
        cache.Set(key=b"probe", value=b"1")
        cache.Get(key=b"probe")
        return ready.wait(0.05)

    wait_until(has_started, "an event")
    act()
    reader.join(60)
    stream.cancel()
    assert not reader.is_alive(), seen
    return seen


def test_events(cache, server):
    def act():
        cache.Set(key=b"k", value=b"12345", ttl=seconds(100))
        cache.Get(key=b"k")
        cache.Get(key=b"none")
        cache.Delete(key=b"k")

    names = {value.number: name.removeprefix("EVENT_KIND_") for name, value in cache.kinds.items()}
    events = [message.event for message in watched(cache, 4, act)]
    seen = [(names[event.kind], event.key, event.length) for event in events]
    assert seen == [("STORED", b"k", 5), ("HIT", b"k", 5), ("MISS", b"none", 0), ("REMOVED", b"k", 5)]
    assert events[0].ttl.seconds in range(80, 101) and abs(events[0].time.seconds - time.time()) < 60


def test_changes_cause_no_lookup_events(cache, server):
    client = pymemcache.Client((server.host, server.port), default_noreply=False)

    def act():
        cache.Set(key=b"k", value=b"1")
        client.add("k", b"2")
        for key in ("k", "none"):
            cache.Touch(key=key.encode(), ttl=seconds(100))
            cache.Increment(key=key.encode())
            cache.Set(key=key.encode(), value=b"1", present=True)
            client.touch(key, 100)
            client.incr(key, 1)
            client.append(key, b"1")
            client.replace(key, b"1")
            client.raw_command(f"mg {key} T100")
            client.raw_command(f"me {key}")
            client.delete(key)
            cache.Delete(key=key.encode())
        client.set("k", b"1")
        client.get("none")
        client.raw_command("gat 100 k", "END\r\n")
        client.raw_command("mg k s")

    hit, missed = (cache.kinds[f"EVENT_KIND_{name}"].number for name in ("HIT", "MISS"))
    events = [message.event for message in watched(cache, 3, act, kinds=[hit, missed])]
    assert [(event.kind, event.key) for event in events] == [(missed, b"none"), (hit, b"k"), (hit, b"k")]


def test_a_store_that_returns_the_old_value_is_a_lookup(start):
    with start(grpc=True, resp=True) as server, Cache(server.grpc_address) as cache:

        def act():
            with socket.create_connection(("127.0.0.1", server.resp_port)) as sock, sock.makefile("rb") as replies:
                sock.sendall(b"SET k 1\r\nSET k 2 GET\r\nGETSET k 3\r\nSET none 1 XX GET\r\n")
                assert [replies.readline() for _ in range(6)][-1] == b"$-1\r\n"

        hit, missed = (cache.kinds[f"EVENT_KIND_{name}"].number for name in ("HIT", "MISS"))
        events = [message.event for message in watched(cache, 3, act, kinds=[hit, missed])]
        assert [(event.kind, event.key) for event in events] == [(hit, b"k"), (hit, b"k"), (missed, b"none")]


def test_events_of_one_kind_and_prefix(cache, server):
    client = pymemcache.Client((server.host, server.port), default_noreply=False)

    def act():
        for n in range(100):
            client.set(f"other{n}", b"1")
            client.set(f"probe{n}", b"1")
            client.delete(f"probe{n}")

    removed = [cache.kinds["EVENT_KIND_STORED"].number]
    events = watched(cache, 100, act, kinds=removed, prefix=b"probe")
    assert [message.event.key for message in events] == [b"probe%d" % n for n in range(100)]


def test_evictions_are_events(start):
    with start("-t", "1", "-m", "8", engine="segment", grpc=True) as server, Cache(server.grpc_address) as cache:
        evicted = cache.kinds["EVENT_KIND_EVICTED"].number

        def act():
            for n in range(200):
                cache.Set(key=b"%d" % n, value=bytes(100_000))

        # The watch includes stores, because `watched` waits until it receives an event of its own store.
        stored = cache.kinds["EVENT_KIND_STORED"].number
        events = watched(cache, 250, act, kinds=[evicted, stored])
        assert {message.event.kind for message in events} == {evicted, stored}


def test_a_slow_watcher_gets_the_number_of_lost_events(cache, server):
    """The server drops events for a slow watcher, and reports their number."""
    stream, begins = cache.Watch(kinds=[cache.kinds["EVENT_KIND_MISS"].number]), threading.Event()

    def look():
        with Cache(server.grpc_address) as other:
            while not begins.wait(0.02):
                other.Get(key=b"probe")

    looking = threading.Thread(target=look)
    looking.start()
    assert next(stream).event.key == b"probe"
    begins.set()
    looking.join()
    with server.connect() as sock, sock.makefile("rb") as replies:
        for _ in range(400):
            sock.sendall(b"".join(b"mg %s-%d v\r\n" % (b"k" * 200, n) for n in range(200)) + b"mn\r\n")
            while replies.readline() != b"MN\r\n":
                pass
    events = lost = 0
    for message in stream:
        events += message.event.key.startswith(b"k")
        lost += message.lost
        if events + lost >= 80_000:
            break
    stream.cancel()
    assert events and lost
    assert int(server.stats()["curr_connections"]) < 10


def test_watchers_are_few_and_allowed(cache, start):
    streams, answers = [cache.Watch() for _ in range(30)], []

    def look(stream):
        try:
            next(stream)
            answers.append("event")
        except grpc.RpcError as error:
            answers.append(error.code().name)

    readers = [threading.Thread(target=look, args=[stream]) for stream in streams]
    for reader in readers:
        reader.start()

    def are_answered():
        cache.Set(key=b"k", value=b"1")
        return len(answers) == 30

    wait_until(are_answered, "an answer for each")
    assert sorted(answers) == ["RESOURCE_EXHAUSTED"] * 10 + ["event"] * 20
    for stream in streams:
        stream.cancel()

    def is_watched():
        """Returns whether the server has released the slots of disconnected watchers."""
        stream = cache.Watch(timeout=0.5, kinds=[1])
        return code(lambda: stream)[0] == "DEADLINE_EXCEEDED"

    wait_until(is_watched, "a free slot")
    with start("-t", "1", "-W", grpc=True) as closed, Cache(closed.grpc_address) as cache:
        assert code(lambda: cache.Watch())[0] == "PERMISSION_DENIED"
