"""Redis clients on a RESP listener: redis-py, Django's cache with redis-py, and Rails' cache. test_go.py tests the Go
clients."""

import asyncio
import subprocess
import threading
import time
from pathlib import Path

import django
import django.conf
import pytest
import redis
import redis.asyncio
from django.core.cache import caches

from pages import check_block, client_blocks
from server import free_ports
from tiers import long

pytestmark = pytest.mark.larder


@pytest.fixture(scope="module", params=["segment", long("delayed")])
def resp(request, start):
    """Provides the port of a RESP listener."""
    with start("-o", "resp_db=1", "-t", "2", engine=request.param, resp=True) as server:
        yield server.resp_port


@pytest.fixture(params=[2, 3])
def client(request, resp):
    with redis.Redis(port=resp, protocol=request.param, socket_timeout=60) as client:
        client.flushall()
        yield client


def test_settings_and_numbers_that_agents_read(client):
    """Datadog's agent fails without `slowlog-max-len`, and check_redis without `used_memory_rss`."""
    assert client.config_get("slowlog-max-len") == {"slowlog-max-len": "0"}
    assert client.config_get("max*") == {"maxclients": "1024", "maxmemory": str(64 << 20), "maxmemory-policy": "allkeys-lru"}
    assert (client.slowlog_get(), client.slowlog_len(), client.execute_command("LATENCY LATEST")) == ([], 0, [])
    client.config_resetstat()
    client.set("flushed", 1)
    client.set("expired", 1, px=1)
    client.flushall()
    client.set("expired", 1, px=1)
    deadline = time.monotonic() + 60
    while (info := client.info())["expired_keys"] == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
        client.get("expired")
    assert info["expired_keys"] == 1
    assert info["used_memory_rss"] > info["used_memory"]
    assert (info["maxclients"], info["maxmemory_policy"]) == (1024, "allkeys-lru")


def test_values(client):
    assert client.ping()
    assert client.set("key", b"\0value\r\n") is True
    assert client.get("key") == b"\0value\r\n"
    assert client.set("key", "other", nx=True) is None
    assert client.set("key", "new", xx=True, get=True) == b"\0value\r\n"
    assert client.append("key", "er") == 5 and client.strlen("key") == 5
    assert client.getrange("key", 1, -2) == b"ewe"
    assert client.getdel("key") == b"newer" and client.get("key") is None
    every_length = {f"length{n}": bytes(n) for n in (0, 1, 1000, 100_000, 900_000)}
    assert client.mset(every_length)
    assert client.mget([*every_length, "absent"]) == [*every_length.values(), None]
    assert client.exists(*every_length, "absent") == 5
    assert client.delete(*every_length) == 5


def test_parts_of_values(client):
    assert client.setrange("key", 3, b"abc") == 6 and client.get("key") == b"\0\0\0abc"
    assert client.setbit("bits", 9, 1) == 0 and client.getbit("bits", 9) == 1
    assert client.bitcount("bits") == 1 and client.bitcount("bits", 0, 8, "BIT") == 0
    assert client.incrbyfloat("price", 10.5) == 10.5 and client.incrbyfloat("price", -0.25) == 10.25
    client.expire("price", 100)
    assert client.rename("price", "cost") and client.ttl("cost") == 100
    assert client.copy("cost", "copy") and not client.copy("cost", "copy") and client.get("copy") == b"10.25"
    assert client.renamenx("cost", "copy") is False and client.renamenx("cost", "price") is True
    assert client.msetnx({"a": 1, "b": 2}) and not client.msetnx({"b": 3, "c": 4})
    assert client.mget("a", "b", "c") == [b"1", b"2", None]
    # The value is so large that the server stores it in pieces.
    large = bytes(range(256)) * 3000
    client.set("large", large)
    assert client.bitcount("large") == 1024 * 3000 and client.getbit("large", 8 * 255 + 7) == 1
    assert client.setrange("large", 700_000, b"\xff" * 8) == len(large)
    assert client.get("large") == large[:700_000] + b"\xff" * 8 + large[700_008:]
    assert client.rename("large", "moved") and client.strlen("moved") == len(large)


def test_no_change_of_a_part_is_lost(client, resp):
    threads, rounds = 8, 100

    def work(number):
        with redis.Redis(port=resp, socket_timeout=60) as own:
            for n in range(rounds):
                own.incrbyfloat("sum", 0.1)
                own.setbit("bits", number * rounds + n, 1)
                own.setrange("bytes", (n * threads + number) * 3, f"{number:03}")

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert client.get("sum") == b"80"
    assert client.bitcount("bits") == threads * rounds
    assert client.get("bytes") == b"".join(b"%03d" % number for number in range(threads)) * rounds


def test_comparisons(client):
    client.set("key", "old")
    assert client.set("key", "new", ifeq="other") is None and client.set("key", "new", ifeq="old")
    assert client.set("key", "newer", ifne="new") is None and client.set("absent", "value", ifne="new")
    assert client.delex("key", ifeq="old") == 0 and client.delex("key", ifne="new") == 0
    assert client.delex("key", ifeq="new") == 1 and not client.exists("key")
    assert client.delex("absent") == 1


def test_numbers(client):
    assert [client.incr("n"), client.incrby("n", 9), client.decr("n"), client.decrby("n", 19)] == [1, 10, 9, -10]
    client.set("n", "text")
    with pytest.raises(redis.ResponseError, match="value is not an integer or out of range"):
        client.incr("n")


def test_expiries(client):
    client.set("key", 1, ex=100)
    assert 80 <= client.ttl("key") <= 100
    assert client.expire("key", 1000, gt=True) and not client.expire("key", 10, gt=True)
    assert client.expireat("key", int(time.time()) + 500)
    assert 480 <= client.ttl("key") <= 500
    assert client.persist("key") and client.ttl("key") == -1
    assert client.ttl("absent") == -2
    assert client.getex("key", ex=50) == b"1" and 30 <= client.ttl("key") <= 50


def test_an_expiry_that_cannot_be_kept_is_refused(client):
    client.set("key", "old")
    for seconds in (5_000_000_000, 2**63):
        with pytest.raises(redis.ResponseError, match="invalid expire time|not an integer"):
            client.set("key", "new", ex=seconds)
    assert client.get("key") == b"old" and client.ttl("key") == -1
    left = int((2105 - 1970) * 365.2425 * 86_400) - int(time.time())
    assert client.set("key", "new", ex=left) and left - 60 <= client.ttl("key") <= left


def test_a_server_of_resp_alone(start):
    (port,) = free_ports(1)
    with start("-l", f"proto[resp]:127.0.0.1:{port}", port=0), redis.Redis(port=port, socket_timeout=60) as client:
        assert client.set("key", "value") and client.get("key") == b"value"


def test_milliseconds(client):
    for sent in (1, 250, 1250, 59_000):
        before = time.monotonic()
        client.set("key", 2, px=sent)
        left = client.pttl("key")
        gone_by = before + sent / 1000
        # Allows a difference of 2 ms, because the server's clock has a resolution of a millisecond.
        passed = (time.monotonic() - before) * 1000 + 2
        assert sent - passed <= left <= sent or left == -2 and passed >= sent
        if sent > 2000:
            continue
        while client.exists("key"):
            time.sleep(0.001)
        late = time.monotonic() - gone_by
        assert -0.002 <= late < 60, "not early"
    client.set("key", 2, px=60_700)
    assert 59_000 < client.pttl("key") <= 60_700
    at = int(time.time() * 1000) + 30_250
    assert client.pexpireat("key", at) and client.pexpiretime("key") == at
    assert client.pexpireat("key", at + 1, gt=True) and not client.pexpireat("key", at, gt=True)


def test_long_keys(client):
    for length in (250, 251, 255, 256, 1024):
        key = "k" * length
        assert client.set(key, length) and client.get(key) == str(length).encode()
        assert client.append(key, "!") == len(str(length)) + 1
    assert sorted(map(len, client.scan_iter())) == [250, 251, 255, 256, 1024]
    with pytest.raises(redis.ResponseError, match="a key has 1 to 1024 bytes"):
        client.set("k" * 1025, 1)
    assert client.exists("k" * 1025) == 0


def test_pipelines_and_transactions(client):
    for is_transaction in (True, False):
        pipeline = client.pipeline(transaction=is_transaction)
        for n in range(200):
            pipeline.set(f"key{n}", n, ex=100).get(f"key{n}")
        answers = pipeline.execute()
        assert answers == [answer for n in range(200) for answer in (True, str(n).encode())]
    pipeline = client.pipeline().set("key", "text").incr("key").get("key")
    answers = pipeline.execute(raise_on_error=False)
    assert answers[0] is True and isinstance(answers[1], redis.ResponseError) and answers[2] == b"text"


def test_no_change_of_a_watched_item_is_lost(client, resp):
    client.set("count", 0)
    threads, rounds, tries = 6, 40, []

    def add_in_transactions():
        with redis.Redis(port=resp, socket_timeout=60) as own:
            for _ in range(rounds):
                while True:
                    with own.pipeline() as pipe:
                        pipe.watch("count")
                        count = int(pipe.get("count"))
                        pipe.multi()
                        pipe.set("count", count + 1)
                        pipe.incr("done")
                        tries.append(count)
                        try:
                            assert pipe.execute()[0] is True
                            break
                        except redis.WatchError:
                            pass

    adding = [threading.Thread(target=add_in_transactions) for _ in range(threads)]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert client.mget("count", "done") == [b"240", b"240"] and len(tries) >= threads * rounds


def test_watching_needs_cas_values(start):
    with start("-C", resp=True) as server, redis.Redis(port=server.resp_port, socket_timeout=60) as client:
        client.set("key", "value")
        with client.pipeline() as pipe, pytest.raises(redis.ResponseError, match="WATCH needs CAS values"):
            pipe.watch("key")


def test_scans(client):
    expected = {f"user:{n}".encode() for n in range(3000)}
    client.mset({key: 1 for key in expected} | {"other": 2})
    for count in (None, 1, 1000):
        assert sorted(client.scan_iter(match="user:*", count=count)) == sorted(expected)
    assert set(client.keys("user:*[05]")) == {key for key in expected if key[-1:] in b"05"}
    assert client.delete(*client.scan_iter("user:*")) == 3000
    assert client.keys() == [b"other"]


def test_server_information(client):
    assert client.info()["redis_version"].startswith("7.") and client.info("server")["server_name"] == "larder"
    assert int(client.config_get("maxmemory")["maxmemory"]) > 0
    assert client.client_setname("me") and client.client_getname() in ("me", b"me")
    client.set("key", "value")
    assert client.memory_usage("key") > 40 and client.dbsize() >= 1
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.lpush("list", 1)


def test_clients_are_listed(client, resp):
    client.client_setname("me")
    mine = client.client_info()
    assert mine["name"] == "me" and int(mine["id"]) == client.client_id()
    assert mine["laddr"].endswith(f":{resp}")
    with redis.Redis(port=resp, socket_timeout=60) as other:
        assert other.ping()
        listed = client.client_list()
        own = str(mine["id"])
        assert len(listed) >= 2 and own in {one["id"] for one in listed}
        assert [one["id"] for one in client.client_list(client_id=[own])] == [own]
    assert client.client_list("replica") == []


def test_a_pool_of_many_threads(resp):
    pool = redis.BlockingConnectionPool(port=resp, max_connections=4, timeout=60, socket_timeout=60)
    client = redis.Redis(connection_pool=pool)
    right = []

    def work(thread):
        for n in range(200):
            key, value = f"thread{thread}:{n % 20}", f"{thread}.{n}"
            client.set(key, value, ex=100)
            right.append(client.get(key) == value.encode())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(right) == 16 * 200 and all(right)
    pool.disconnect()


def test_asyncio(resp):
    async def work():
        async with redis.asyncio.Redis(port=resp, socket_timeout=60) as client:
            await asyncio.gather(*(client.set(f"key{n}", n) for n in range(50)))
            return await client.mget([f"key{n}" for n in range(50)])

    assert asyncio.run(work()) == [str(n).encode() for n in range(50)]


def test_django(resp):
    place = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"redis://127.0.0.1:{resp}/1"}
    if not django.conf.settings.configured:
        django.conf.settings.configure()
    django.conf.settings.CACHES = {"default": place}
    caches.settings = caches._settings = caches.configure_settings(django.conf.settings.CACHES)
    cache = caches.create_connection("default")
    cache.clear()
    cache.set("page", {"title": "larder", "links": [1, 2]}, timeout=100)
    assert cache.get("page") == {"title": "larder", "links": [1, 2]}
    assert cache.add("page", 1) is False and cache.add("other", 5, timeout=100) is True
    assert cache.incr("other", 3) == 8 and cache.decr("other") == 7
    assert cache.get_or_set("made", lambda: "once", timeout=100) == "once"
    assert cache.touch("page", 200) and not cache.touch("absent", 200)
    cache.set_many({f"key{n}": n for n in range(100)}, timeout=100)
    assert cache.get_many([f"key{n}" for n in range(101)]) == {f"key{n}": n for n in range(100)}
    cache.delete_many([f"key{n}" for n in range(100)])
    assert cache.get("key5", "none") == "none" and cache.has_key("page")
    assert cache.delete("page") and not cache.delete("page")
    assert cache.incr_version("other") == 2 and cache.get("other", version=2) == 7
    cache.set("gone", 1, timeout=0)
    assert cache.get("gone") is None


@pytest.mark.parametrize("page", ["compatibility-redis.md", "scripts.md"])
def test_the_commands_of_the_documentation(start, page):
    (block,) = client_blocks(page)
    with start("-t", "1", resp=True) as server:
        check_block(block, {"6379": server.resp_port, "11211": server.port})


def test_redis_cli(client, resp):
    def run(*words, sent=None):
        cli = ["redis-cli", "-p", str(resp), *words]
        done = subprocess.run(cli, input=sent, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run(sent="SET key value EX 60\nGET key\nINCR key\nMGET key absent\n") == (
        "OK\nvalue\nERR value is not an integer or out of range\n\nvalue\n\n"
    )
    assert run("-3", "--no-raw", "GET", "absent") == "(nil)\n"
    assert run("-x", "SET", "key", sent="from input") == "OK\n" and client.get("key") == b"from input"
    assert sorted(run("--scan", "--pattern", "k*").split()) == ["key"]
    client.mset({f"key{n}": n for n in range(1000)})
    assert len(run("--scan").split()) == 1001
    sent = "".join(f"*3\r\n$3\r\nSET\r\n$4\r\npipe\r\n$1\r\n{n % 10}\r\n" for n in range(1000))
    assert "errors: 0, replies: 1000" in run("--pipe", sent=sent)


def test_redis_benchmark(resp):
    """Runs redis-benchmark's tests of string commands. redis-benchmark exits with an error message if the server
    refuses a command."""
    tests = "ping_inline,ping_mbulk,set,get,incr,mset"
    words = ["redis-benchmark", "-p", str(resp), "-n", "2000", "-c", "20", "-r", "1000", "-P", "4", "--csv", "-t", tests]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split('"')[1] for line in done.stdout.splitlines()[1:]]
    assert names == ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET (10 keys)"], done.stdout


def test_rails(resp):
    script = Path(__file__).with_name("rails_cache.rb")
    done = subprocess.run(["ruby", script, str(resp)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith(": ok\n"), done.stdout + done.stderr
