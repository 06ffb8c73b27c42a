"""Requests through twemproxy and through memcached's proxy to three servers."""

import os
import random
import threading

import pylibmc
import pytest

from clusters import Cluster, Twemproxy, receive
from server import TIMEOUT_SECS

KEYS = 5000
# Lengths around 16 KiB, the size of twemproxy's buffers, and around 64 KiB, above which larderd stores and sends values
# in pieces, and further lengths up to nearly the maximum.
LENGTHS = [0, 1, 100, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 262_144, 900 << 10]
# Requests for the key, and the replies.
EXCHANGES = [
    (b"get key\r\n", b"END\r\n"),
    (b"set key 7 0 5\r\nvalue\r\n", b"STORED\r\n"),
    (b"get key\r\n", b"VALUE key 7 5\r\nvalue\r\nEND\r\n"),
    (b"add key 0 0 1\r\n0\r\n", b"NOT_STORED\r\n"),
    (b"append key 0 0 1\r\n+\r\n", b"STORED\r\n"),
    (b"prepend key 0 0 1\r\n-\r\n", b"STORED\r\n"),
    (b"get key\r\n", b"VALUE key 7 7\r\n-value+\r\nEND\r\n"),
    (b"touch key 1000\r\n", b"TOUCHED\r\n"),
    (b"incr key 1\r\n", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    (b"cas key 0 0 1 0\r\n1\r\n", b"EXISTS\r\n"),
    (b"replace key 4294967295 0 2\r\n\r\n\r\n", b"STORED\r\n"),
    (b"get key\r\n", b"VALUE key 4294967295 2\r\n\r\n\r\nEND\r\n"),
    (b"set key 0 0 2\r\n10\r\n", b"STORED\r\n"),
    (b"incr key 18446744073709551605\r\n", b"18446744073709551615\r\n"),
    (b"incr key 2\r\n", b"1\r\n"),
    (b"decr key 5\r\n", b"0\r\n"),
    (b"delete key\r\n", b"DELETED\r\n"),
    (b"delete key\r\n", b"NOT_FOUND\r\n"),
    (b"touch key 1\r\n", b"NOT_FOUND\r\n"),
    (b"incr key 1\r\n", b"NOT_FOUND\r\n"),
    (b"append key 0 0 1\r\n+\r\n", b"NOT_STORED\r\n"),
    (b"replace key 0 0 1\r\n+\r\n", b"NOT_STORED\r\n"),
    (b"cas key 0 0 1 1\r\n1\r\n", b"NOT_FOUND\r\n"),
    (b"set key 0 0 5 noreply\r\nquiet\r\nget key\r\n", b"VALUE key 0 5\r\nquiet\r\nEND\r\n"),
    (b"delete key\r\n", b"DELETED\r\n"),
]


def test_requests_one_by_one(router, client):
    client.delete("key")
    with router.connect() as sock:
        for request, answer in EXCHANGES:
            sock.sendall(request)
            assert receive(sock, len(answer)) == answer, request


def test_deletes_without_an_answer(router, client):
    # memcached's proxy forwards the request as `delete key noreplY`. The test checks that a server accepts this form.
    client.set("key", b"1")
    with router.connect() as sock:
        sock.sendall(b"delete key noreply\r\nget key\r\n")
        assert receive(sock, 5) == b"END\r\n"


def test_requests_at_once_to_all_servers(router):
    """A pipeline of all requests for many keys. Replies arrive in the order of requests."""
    keys = [b"pipeline%d" % number for number in range(100)]
    requests, answers = bytearray(), bytearray()
    for request, answer in EXCHANGES:
        if answer.startswith(b"CLIENT_ERROR") and not isinstance(router, Twemproxy):
            # After a CLIENT_ERROR, memcached's proxy closes its connection to the server, and other requests on this
            # connection fail.
            continue
        for key in keys:
            requests += request.replace(b" key", b" " + key)
            answers += answer.replace(b" key", b" " + key)
    with router.connect() as sock:
        sender = threading.Thread(target=sock.sendall, args=(requests,))
        sender.start()
        assert receive(sock, len(answers)) == answers
        sender.join()


def test_values_of_all_lengths(cluster, router, client):
    ring = router.ring()
    for length in LENGTHS:
        for key in [f"length{length}/{number}" for number in range(6)]:
            value = random.randbytes(length)
            assert client.set(key, value, flags=length % 1000)
            assert client.get(key) == value
            assert cluster.client(ring.owner(key)).get(key) == value
            if length:
                assert client.append(key, b"end") and client.prepend(key, b"start")
                assert client.get(key) == b"start" + value + b"end"
            assert client.delete(key)


def test_values_up_to_the_limit_of_the_servers(start, router):
    """Routers add no length limit of their own."""
    with Cluster(start, options=["-I", "8m", "-m", "256"]) as cluster, type(router)(cluster) as own:
        client = own.client()
        for length in [1 << 20, 3 << 20, 7 << 20]:
            value = os.urandom(length)
            assert client.set("large", value)
            assert client.get("large") == value
        client.close()


def test_too_large_values_are_refused_without_other_failures(cluster, router, client):
    """twemproxy ejects a server that replies before it has the complete request."""
    key, other = router.ring().keys_of("cache1", 2)
    client.set(other, b"1")
    with router.connect() as sock:
        for length in [1 << 20, 2 << 20, 5 << 20] * 2:
            sock.sendall(b"set %s 0 0 %d\r\n%b\r\n" % (key.encode(), length, bytes(length)))
            answer = b"SERVER_ERROR object too large for cache\r\n"
            assert receive(sock, len(answer)) == answer, length
            assert client.get(other) == b"1"
    assert client.get(key) is None
    if isinstance(router, Twemproxy):
        stats = router.stats()
        assert stats["server_ejects"] == 0 and stats["forward_error"] == 0
        assert stats["cache1"]["server_err"] == 0


def test_many_keys_at_once(client):
    items = {f"many{number}": b"%d" % number * (number % 50) for number in range(1000)}
    assert client.set_many(items) == []
    assert client.get_many([*items, "absent"]) == items
    assert {key: value for key, (value, _) in client.gets_many(list(items)).items()} == items
    large = {f"large{number}": os.urandom(200_000) for number in range(20)}
    assert client.set_many(large) == []
    assert client.get_many(list(large)) == large
    assert client.delete_many([*items, *large])
    assert client.get_many([*items, *large]) == {}


def test_compare_and_swap(client):
    for number in range(30):
        key = f"cas{number}"
        assert client.set(key, b"1")
        value, unique = client.gets(key)
        assert value == b"1"
        assert client.cas(key, b"2", unique) is True
        assert client.cas(key, b"3", unique) is False
        assert client.get(key) == b"2"
        client.delete(key)
        assert client.cas(key, b"3", unique) is None


def test_counters_of_several_clients(router, client):
    """The server counts each increment of each connection once."""
    for number in range(20):
        client.set(f"counter{number}", b"0")

    def count():
        own = router.client()
        for turn in range(500):
            own.incr(f"counter{turn % 20}", 1)
        own.close()

    in_threads(4, lambda _: count())
    counters = client.get_many([f"counter{number}" for number in range(20)])
    assert set(counters.values()) == {b"100"}


def test_clients_with_values_of_all_lengths_at_once(router):
    """Small and large requests of several clients share the router's connections."""

    def use(number):
        draw, own, known = random.Random(number), router.client(), {}
        for _ in range(300):
            key = f"client{number}/{draw.randrange(10)}"
            if draw.random() < 0.4:
                known[key] = draw.randbytes(draw.choice(LENGTHS) if draw.random() < 0.3 else 50)
                assert own.set(key, known[key])
            else:
                assert own.get(key) == known.get(key), key
        assert own.get_many(list(known)) == known
        own.delete_many(list(known))
        own.close()

    in_threads(4, use)


def test_keys_are_on_their_owners_in_the_ring(cluster, router, client):
    check_places(cluster, router, client)


@pytest.mark.parametrize("hash", ["fnv1a_64", "md5"])
def test_rings_of_addresses(cluster, hash):
    with Twemproxy(cluster, has_names=False, hash=hash) as router:
        check_places(cluster, router, router.client())


def check_places(cluster, router, client):
    keys = [f"user:{number}:profile" for number in range(KEYS)]
    client.set_many({key: b"x" for key in keys}, noreply=True)
    assert len(client.get_many(keys)) == KEYS
    ring = router.ring()
    assert cluster.holders(keys) == {key: [ring.owner(key)] for key in keys}
    owners = [ring.owner(key) for key in keys]
    for name in cluster.names:
        # With 160 points per server, the standard deviation of a server's share is 0.022.
        assert 0.23 < owners.count(name) / KEYS < 0.43, "each server has a third"
    client.delete_many(keys)
    assert cluster.holders(keys) == {}


def test_libmemcached_finds_the_same_keys(cluster):
    """With MD5 and without names, twemproxy has the ring of libmemcached's weighted ketama."""
    with Twemproxy(cluster, has_names=False, hash="md5") as router:
        direct = pylibmc.Client([f"{cluster.host}:{port}" for port in cluster.ports.values()])
        direct.behaviors = {"ketama_weighted": True}
        keys = [f"libmemcached{number}" for number in range(500)]
        assert all(direct.set(key, "x") for key in keys)
        client = router.client()
        assert list(client.get_many(keys)) == keys
        client.delete_many(keys)
        assert direct.get_multi(keys) == {}
        direct.disconnect_all()


def test_twemproxy_and_memcached_find_the_same_keys(cluster, router, client):
    if isinstance(router, Twemproxy):
        pytest.skip("it is one of both")
    with Twemproxy(cluster, has_names=False, hash="md5") as other:
        items = {f"both{number}": b"%d" % number for number in range(500)}
        client.set_many(items)
        assert other.client().get_many(list(items)) == items
        other.client().delete_many(list(items))
        assert client.get_many(list(items)) == {}


def in_threads(count, function):
    """Calls `function(number)` in threads, and raises the first exception of a thread."""
    faults = []

    def run(number):
        try:
            function(number)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * TIMEOUT_SECS)
    if faults:
        raise faults[0]
