"""A server behind a router is killed or paused, and then returns."""

import glob
import os
import random
import time

import pymemcache
import pytest

from clusters import Cluster, MemcachedProxy, Twemproxy
from load import Load
from server import wait_until

ServerError = pymemcache.exceptions.MemcacheServerError
RETRY_SECS = 2
# Seconds by which a busy machine may delay configured timeouts.
DELAY_SECS = 4
LOST = "cache1"


@pytest.fixture
def cluster(start):
    with Cluster(start, options=["-t", "2"]) as cluster:
        yield cluster


@pytest.fixture
def twemproxy(cluster):
    with Twemproxy(cluster) as router:
        yield router


@pytest.fixture
def proxy(cluster):
    with MemcachedProxy(cluster) as router:
        yield router


def keys_of_each(cluster, router, count=50):
    return {name: router.ring().keys_of(name, count) for name in cluster.names}


def until_answered(request):
    """Repeats a request until the router's reply is not an error, and returns that reply."""
    answers = []

    def is_answered():
        try:
            answers.append(request())
        except ServerError:
            pass
        return answers

    wait_until(is_answered, "an answer")
    return answers[0]


def store_until_held_by(name, cluster, client, key, value):
    """Stores a key through the router until it is on this server."""

    def is_held():
        until_answered(lambda: client.set(key, value))
        return cluster.client(name).get(key) == value

    wait_until(is_held, f"the change to {name}")


def test_a_killed_server_is_ejected_and_comes_back(cluster, twemproxy):
    keys = keys_of_each(cluster, twemproxy)
    others = twemproxy.ring([name for name in cluster.names if name != LOST])
    with Load(twemproxy, keys) as load:
        wait_until(lambda: load.answered_since(0, LOST) > 100, "load")
        assert not load.faults()

        killed = time.monotonic()
        cluster.kill(LOST)
        dead = time.monotonic()
        wait_until(lambda: load.answered_since(dead, LOST) > 100, "the ejection")
        assert load.faults(), "requests failed until then"
        ejected = min(o.begun for o in load.outcomes if o.owner == LOST and o.begun > dead and not o.fault)
        assert ejected - killed < DELAY_SECS
        # The keys of the lost server belong to the servers that own them in a ring without the lost server.
        client = twemproxy.client()
        for key in keys[LOST][:20]:
            store_until_held_by(others.owner(key), cluster, client, key, f"value of {key}".encode())
        # While the server is down, the router retries it with client requests, which fail.
        ejects = twemproxy.stats()["server_ejects"]
        wait_until(lambda: twemproxy.stats()["server_ejects"] >= ejects + 2, "ejections")

        cluster.restart(LOST)
        back = time.monotonic()
        wait_until(lambda: cluster.client(LOST).get_many(keys[LOST]), "its return")
        assert time.monotonic() - back < RETRY_SECS + DELAY_SECS
        settled = time.monotonic()
        wait_until(lambda: load.answered_since(settled, LOST) > 100, "load")
    load.check(LOST)
    assert not [o for o in load.faults() if o.begun > settled]
    faults, at_once = len(load.faults()), sum(o.begun < ejected for o in load.faults())
    print(f"ejected after {ejected - killed:.3f} s and {at_once} failed requests, {faults} in all")
    print(f"back after {settled - back:.3f} s; {len(load.outcomes)} requests")
    for name, owned in keys.items():
        for key in owned:
            client.set(key, b"after")
            assert cluster.client(name).get(key) == b"after"
    client.close()


def test_requests_for_several_keys_fail_with_one_of_them(cluster, twemproxy):
    keys = [owned[0] for owned in keys_of_each(cluster, twemproxy, 1).values()]
    client = twemproxy.client()
    client.set_many({key: b"1" for key in keys})
    cluster.kill(LOST)
    with twemproxy.connect() as sock:
        sock.sendall(f"get {' '.join(keys)}\r\n".encode())
        answer = sock.makefile("rb").read()
    assert answer.startswith(b"SERVER_ERROR ") and answer.count(b"\r\n") == 1, "the connection is closed"
    found = until_answered(lambda: client.get_many(keys))
    assert found == {key: b"1" for key in keys[1:]}
    client.close()


def test_with_all_servers_lost_requests_fail_and_then_are_answered(cluster, twemproxy):
    client = twemproxy.client()
    for name in cluster.names:
        cluster.kill(name)
    for number in range(30):
        with pytest.raises(ServerError):
            client.get(f"key{number}")
    for name in cluster.names:
        cluster.restart(name)
    for number in range(30):
        until_answered(lambda: client.set(f"key{number}", b"1"))
        assert until_answered(lambda: client.get(f"key{number}")) in (None, b"1")
    client.close()


def test_values_of_one_failure_return_at_the_next_one(cluster, twemproxy):
    """Items stored on other servers during a failure stay there."""
    key, probe = twemproxy.ring().keys_of(LOST, 2)
    other = twemproxy.ring([name for name in cluster.names if name != LOST]).owner(key)
    client = twemproxy.client()
    client.set(key, b"first")
    cluster.kill(LOST)
    store_until_held_by(other, cluster, client, key, b"second")
    cluster.restart(LOST)
    store_until_held_by(LOST, cluster, client, probe, b"1")
    assert client.get(key) is None, "a server without -e comes back empty"
    client.set(key, b"third")
    assert client.get(key) == b"third"
    cluster.kill(LOST)
    stale = until_answered(lambda: client.get(key))
    assert stale == b"second"
    client.close()


def test_a_paused_server_returns_with_old_values(cluster):
    settings = {"timeout": 500, "server_retry_timeout": 5000}
    with Twemproxy(cluster, settings=settings) as router:
        key, late = router.ring().keys_of(LOST, 2)
        [of_another] = router.ring().keys_of("cache2", 1)
        client = router.client()
        client.set(key, b"old")
        client.set(of_another, b"1")
        with cluster.stopped(LOST):
            begun = time.monotonic()
            with pytest.raises(ServerError, match="timed out"):
                client.set(late, b"late")
            assert 0.4 < time.monotonic() - begun < 0.5 + DELAY_SECS
            assert client.get(of_another) == b"1"
            assert until_answered(lambda: client.get(key)) is None, "another server is asked"
            client.set(key, b"new")
            assert client.get(key) == b"new"
        wait_until(lambda: until_answered(lambda: client.get(key)) == b"old", "its return")
        # The server may execute a failed request when it resumes.
        wait_until(lambda: until_answered(lambda: client.get(late)) == b"late", "the late request")
        client.close()


@pytest.mark.larder
def test_a_server_that_kept_its_items_returns_with_old_values(start):
    """With -e, items survive `kill -9`. Other servers have changed some of these keys since, so the returning server
    has old values."""
    if not os.path.exists("/dev/shm"):
        pytest.skip("there is no /dev/shm")
    prefix = f"/dev/shm/larder-test-{os.getpid()}-{random.random()}-"
    try:
        options = ["-e", prefix + "{name}"]
        with Cluster(start, options=options) as cluster, Twemproxy(cluster) as router:
            key, removed = router.ring().keys_of(LOST, 2)
            client = router.client()
            client.set_many({key: b"old", removed: b"old"})
            cluster.kill(LOST)
            until_answered(lambda: client.set(key, b"new"))
            until_answered(lambda: client.delete(removed))
            assert until_answered(lambda: client.get_many([key, removed])) == {key: b"new"}
            cluster.restart(LOST)
            both = {key: b"old", removed: b"old"}
            read = lambda: until_answered(lambda: client.get_many([key, removed]))
            wait_until(lambda: read() == both, "its return")
            client.close()
    finally:
        for file in glob.glob(prefix + "*"):
            os.unlink(file)


def test_behind_memcached_a_killed_server_is_missing_until_it_is_back(cluster, proxy):
    """memcached's proxy never ejects a server. Requests for keys of a lost server fail at once, and do not go to
    another server."""
    keys = keys_of_each(cluster, proxy)
    with Load(proxy, keys) as load:
        wait_until(lambda: load.answered_since(0, LOST) > 100, "load")
        assert not load.faults()
        cluster.kill(LOST)
        wait_until(lambda: len(load.faults()) > 200, "failures")
        client = proxy.client()
        with pytest.raises(ServerError, match="backend failure"):
            client.set(keys[LOST][0], b"1")
        cluster.restart(LOST)
        back = time.monotonic()
        wait_until(lambda: load.answered_since(back, LOST) > 100, "its return")
        settled = time.monotonic()
        assert settled - back < RETRY_SECS + DELAY_SECS
        print(f"back after {settled - back:.3f} s")
        wait_until(lambda: load.answered_since(settled, LOST) > 100, "load")
    load.check(LOST)
    assert not [outcome for outcome in load.faults() if outcome.begun > settled]
    holders = cluster.holders([key for owned in keys.values() for key in owned])
    ring = proxy.ring()
    assert all(found == [ring.owner(key)] for key, found in holders.items())
    client.close()


def test_behind_memcached_one_of_several_keys_is_an_error_line(cluster, proxy):
    keys = [owned[0] for owned in keys_of_each(cluster, proxy, 1).values()]
    client = proxy.client()
    client.set_many({key: b"1" for key in keys})
    cluster.kill(LOST)
    with proxy.connect() as sock:
        sock.sendall(f"get {' '.join(keys)}\r\n".encode())
        lines = sock.makefile("rb")
        assert lines.readline() == b"SERVER_ERROR backend failure\r\n"
        for key in keys[1:]:
            assert lines.readline() == f"VALUE {key} 0 1\r\n".encode()
            assert lines.readline() == b"1\r\n"
        assert lines.readline() == b"END\r\n"
    client.close()


def test_behind_memcached_a_server_is_paused(cluster):
    with MemcachedProxy(cluster, timeout=1) as router:
        key, late = router.ring().keys_of(LOST, 2)
        [of_another] = router.ring().keys_of("cache2", 1)
        client = router.client()
        client.set_many({key: b"old", of_another: b"1"})
        with cluster.stopped(LOST):
            begun = time.monotonic()
            with pytest.raises(ServerError, match="backend failure"):
                client.set(late, b"late")
            assert 0.9 < time.monotonic() - begun < 1 + DELAY_SECS
            assert client.get(of_another) == b"1"
        assert until_answered(lambda: client.get(key)) == b"old"
        wait_until(lambda: until_answered(lambda: client.get(late)) == b"late", "the late request")
        client.close()
