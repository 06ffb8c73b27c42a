"""redis-py through twemproxy to the RESP listeners of three servers."""

import random

import pytest
import redis

from clusters import Cluster, Twemproxy
from server import TIMEOUT_SECS, wait_until

pytestmark = pytest.mark.larder


@pytest.fixture(scope="module")
def cluster(start):
    with Cluster(start, options=["-t", "2"], resp=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def router(cluster):
    with Twemproxy(cluster, is_redis=True) as router:
        yield router


@pytest.fixture
def client(router):
    """Provides a client that starts with neither `HELLO` nor `CLIENT`, because twemproxy supports neither."""
    options = {"protocol": 2, "driver_info": None, "socket_timeout": TIMEOUT_SECS}
    with redis.Redis(router.host, router.port, **options) as client:
        yield client


def test_values(client):
    assert client.ping()
    assert client.set("key", b"\0value\r\n") is True
    assert client.get("key") == b"\0value\r\n"
    assert client.set("key", "other", nx=True) is None
    assert client.append("key", "+") == 9 and client.strlen("key") == 9
    assert client.exists("key") == 1
    assert client.delete("key") == 1 and client.get("key") is None
    for length in [0, 1, 16_384, 65_536, 65_537, 900 << 10]:
        value = random.randbytes(length)
        assert client.set("key", value) and client.get("key") == value


def test_many_keys_at_once(cluster, router, client):
    items = {f"many{number}": b"%d" % number for number in range(1000)}
    assert client.mset(items)
    assert client.mget([*items, "absent"]) == [*items.values(), None]
    ring = router.ring()
    assert cluster.holders(list(items)) == {key: [ring.owner(key)] for key in items}
    assert client.delete(*items, "absent") == 1000
    assert client.mget(list(items)) == [None] * 1000


def test_pipelines(client):
    pipeline = client.pipeline(transaction=False)
    for number in range(1000):
        pipeline.set(f"pipe{number}", number)
        pipeline.get(f"pipe{number}")
        pipeline.delete(f"pipe{number}")
    answers = pipeline.execute()
    assert answers == [answer for number in range(1000) for answer in (True, b"%d" % number, 1)]


def test_numbers_and_expiries(client):
    client.delete("n")
    assert [client.incr("n"), client.incrby("n", 9), client.decr("n")] == [1, 10, 9]
    assert client.expire("n", 1000) and 990 < client.ttl("n") <= 1000
    assert client.persist("n") and client.ttl("n") == -1
    assert client.set("n", "1", px=50)
    wait_until(lambda: client.get("n") is None, "the expiry")
    assert client.expire("n", 1000) is False
    with pytest.raises(redis.ResponseError, match="not an integer"):
        client.set("n", "text")
        client.incr("n")


def test_both_protocols_have_the_same_items(cluster, router, client):
    with Twemproxy(cluster) as other:
        memcache = other.client()
        for number in range(100):
            client.set(f"both{number}", number)
            assert memcache.get(f"both{number}") == b"%d" % number
        memcache.close()


@pytest.mark.parametrize(
    "command",
    ["HELLO 3", "CLIENT SETINFO LIB-NAME x", "SELECT 0", "MULTI", "KEYS *", "SCAN 0", "FLUSHALL", "INFO"],
)
def test_refused_commands_close_the_connection(client, command):
    with pytest.raises(redis.ConnectionError):
        client.execute_command(*command.split())


def test_a_killed_server(cluster, router, client):
    """This test must be the last one of the module, because it does not restart the killed server."""
    keys = router.ring().keys_of("cache1", 1) + router.ring().keys_of("cache2", 1)
    cluster.kill("cache1")
    with pytest.raises((redis.ResponseError, redis.ConnectionError)):
        client.get(keys[0])
    assert client.set(keys[1], "1") is True

    def is_answered():
        try:
            return client.set(keys[0], "1")
        except redis.ResponseError:
            return False

    wait_until(is_answered, "the ejection")
    assert "cache1" not in cluster.holders(keys)[keys[0]]
