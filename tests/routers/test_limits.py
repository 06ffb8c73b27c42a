"""Requests that routers do not forward."""

import pytest

from clusters import MemcachedProxy, Twemproxy, receive

# Requests after which the router closes the connection without a reply.
REFUSED = {
    "meta": b"mg key v\r\n",
    "meta no-op": b"mn\r\n",
    "binary": b"\x80\x0b" + bytes(22),
    "gat": b"gat 10 key\r\n",
    "gats": b"gats 10 key\r\n",
    "stats": b"stats\r\n",
    "flush_all": b"flush_all\r\n",
    "a negative expiry": b"set key 0 -1 1\r\n1\r\n",
    "a key of 251 bytes": b"get " + b"k" * 251 + b"\r\n",
    "an unknown command": b"larder\r\n",
}


@pytest.fixture(scope="module")
def router(cluster):
    with Twemproxy(cluster) as router:
        yield router


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED)
def test_refused_requests_close_the_connection(router, request_bytes):
    with router.connect() as sock:
        sock.sendall(request_bytes)
        assert sock.recv(100) == b""
    client = router.client()
    assert client.set("key", b"1") and client.get("key") == b"1", "others are served"
    client.close()


def test_version_is_a_servers(cluster, router):
    assert router.client().version() == cluster.client("cache1").version()


def test_an_expiry_in_the_past_passes_as_touch(router):
    client = router.client()
    client.set("key", b"1")
    assert client.touch("key", -1) and client.get("key") is None
    client.close()


def test_a_connection_to_a_server_is_shared(cluster, router):
    """Each server has one connection from the router, and one from the test for its statistics."""
    socks = [router.connect() for _ in range(200)]
    for number, sock in enumerate(socks):
        sock.sendall(b"set shared%d 0 0 1\r\n1\r\n" % number)
    for sock in socks:
        assert receive(sock, 8) == b"STORED\r\n"
    counts = [int(server.stats()["curr_connections"]) for server in cluster.servers.values()]
    for sock in socks:
        sock.close()
    assert max(counts) < 10, counts


@pytest.fixture(scope="module")
def proxy(cluster):
    with MemcachedProxy(cluster) as router:
        yield router


# Requests to memcached's proxy with its replies. An empty reply means that the proxy closes the connection.
OF_PROXY = {
    "meta set": (b"ms key 1\r\n1\r\n", b"HD\r\n"),
    "meta get": (b"mg key v k\r\n", b"VA 1 kkey\r\n1\r\n"),
    "gat": (b"gat 10 key\r\n", b"VALUE key 0 1\r\n1\r\nEND\r\n"),
    "a negative expiry": (b"set key 0 -1 1\r\n1\r\n", b"STORED\r\n"),
    "meta no-op": (b"mn\r\n", b"MN\r\n"),
    "flush_all": (b"flush_all\r\n", b""),
    "an unknown command": (b"larder\r\n", b""),
}


def test_limits_of_memcacheds_proxy(proxy):
    for name, (request_bytes, answer) in OF_PROXY.items():
        with proxy.connect() as sock:
            sock.sendall(request_bytes)
            assert receive(sock, len(answer)) == answer, name
            assert answer or sock.recv(100) == b"", name
