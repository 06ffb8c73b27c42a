"""Libraries whose scripts the server implements as built-in operations: locks, counters and rate limits."""

import asyncio
import threading
import time

import cashews
import limits.storage
import limits.strategies
import pytest
import redis
import redis.asyncio
from django.conf import settings
from django_redis.cache import RedisCache
from redis.exceptions import LockNotOwnedError, NoScriptError, ResponseError

from tiers import long

pytestmark = pytest.mark.larder


@pytest.fixture(scope="module", params=["segment", long("delayed")])
def resp(request, start):
    """Provides the port of a RESP listener."""
    with start("-t", "2", engine=request.param, resp=True) as server:
        yield server.resp_port


@pytest.fixture(params=[2, 3])
def client(request, resp):
    with redis.Redis(port=resp, protocol=request.param, socket_timeout=60) as client:
        client.flushall()
        client.script_flush()
        yield client


def test_locks_of_redis_py(client):
    lock = client.lock("lock", timeout=50)
    assert lock.acquire() and not client.lock("lock").acquire(blocking=False)
    assert 49_000 < client.pttl("lock") <= 50_000
    assert lock.extend(10) and 59_000 < client.pttl("lock") <= 60_000
    assert lock.extend(20, replace_ttl=True) and 19_000 < client.pttl("lock") <= 20_000
    assert lock.reacquire() and 49_000 < client.pttl("lock") <= 50_000
    lock.release()
    assert not client.exists("lock")
    lock.acquire()
    client.set("lock", "another owner")
    for call in lock.release, lock.reacquire, lambda: lock.extend(1):
        lock.local.token = b"token"  # `release` removes it.
        with pytest.raises(LockNotOwnedError):
            call()
    assert client.get("lock") == b"another owner"


def test_a_lock_of_redis_py_admits_one_thread_at_a_time(resp):
    counts = {"inside": 0, "done": 0}

    def work():
        with redis.Redis(port=resp, socket_timeout=60) as client:
            for _ in range(20):
                with client.lock("mutex", timeout=60, sleep=0.001):
                    counts["inside"] += 1
                    assert counts["inside"] == 1
                    counts["done"] += 1
                    counts["inside"] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert counts == {"inside": 0, "done": 160}


def test_locks_of_redis_py_with_asyncio(resp):
    async def main():
        async with redis.asyncio.Redis(port=resp) as client:
            async with client.lock("async lock", timeout=50) as lock:
                assert await lock.extend(5)
                assert not await client.lock("async lock").acquire(blocking=False)
            assert not await client.exists("async lock")

    asyncio.run(main())


def test_increments_of_django_redis_are_atomic(django_redis):
    django_redis.set("counter", 0)
    with pytest.raises(ValueError):
        django_redis.incr("no such counter")
    assert django_redis.incr("no such counter", ignore_key_check=True) == 1

    def work():
        for _ in range(100):
            django_redis.incr("counter")

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert django_redis.get("counter") == 800
    assert django_redis.decr("counter", 50) == 750


def test_locks_of_django_redis(django_redis):
    with django_redis.lock("lock", timeout=50):
        assert not django_redis.lock("lock").acquire(blocking=False)
    assert django_redis.lock("lock").acquire(blocking=False)


@pytest.fixture
def django_redis(resp):
    if not settings.configured:
        settings.configure()
    cache = RedisCache(f"redis://127.0.0.1:{resp}", {})
    cache.clear()
    yield cache
    cache.close()


@pytest.mark.parametrize("amount", [1, 3])
def test_fixed_windows_of_limits(client, amount):
    port = client.connection_pool.connection_kwargs["port"]
    storage = limits.storage.storage_from_string(f"redis://127.0.0.1:{port}")
    limiter = limits.strategies.FixedWindowRateLimiter(storage)
    limit = limits.parse("6/minute")
    assert [limiter.hit(limit, "user", cost=amount) for _ in range(6 // amount)] == [True] * (6 // amount)
    assert not limiter.hit(limit, "user", cost=amount)
    assert limiter.get_window_stats(limit, "user").remaining == 0
    assert 0 < limiter.get_window_stats(limit, "user").reset_time - time.time() <= 61


def test_cashews(resp):
    async def main():
        cache = cashews.Cache()
        cache.setup(f"redis://127.0.0.1:{resp}", client_side=False)
        assert [await cache.incr("hits", expire=50) for _ in range(3)] == [1, 2, 3]
        assert 0 < await cache.get_expire("hits") <= 50
        async with cache.lock("lock", expire=10):
            assert await cache.is_locked("lock")
        assert not await cache.is_locked("lock")
        await cache.close()

    asyncio.run(main())


def test_unknown_scripts_are_refused(client):
    client.set("key", "value")
    for call in (
        lambda: client.eval("return redis.call('get', KEYS[1])", 1, "key"),
        lambda: client.register_script("return 1")(keys=["key"]),
        lambda: client.script_load("return 1"),
    ):
        with pytest.raises(ResponseError, match="unknown script.*docs/scripts.md"):
            call()
    with pytest.raises(NoScriptError):
        client.evalsha("0" * 40, 1, "key")
    assert client.script_exists("0" * 40) == [False]
    assert client.get("key") == b"value"
