"""gRPC, with a client in another language that learns the service by reflection, and the commands of
docs/grpc.md."""

import base64
import concurrent.futures
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pymemcache
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_client import OPTIONS, Cache, code, seconds
from server import wait_until
from tiers import long

pytestmark = pytest.mark.larder

ROOT = Path(__file__).parents[3]
LENGTHS = [0, 1, 1000, 65_535, 65_536, 65_537, 300_000, 900_000]


@pytest.fixture(autouse=True, scope="module")
def one_runtime(request):
    if request.config.getoption("--runtime"):
        pytest.skip("gRPC has a thread of its own, whatever the runtime of the workers")


@pytest.fixture(scope="module", params=["segment", long("delayed")])
def server(request, start):
    with start("-t", "2", engine=request.param, grpc=True) as server:
        yield server


@pytest.fixture
def cache(server):
    with Cache(server.grpc_address) as cache:
        cache.Flush()
        yield cache


def test_the_service_is_found_by_reflection(cache):
    assert set(cache.services) >= {"larder.v1.Cache", "grpc.health.v1.Health"}
    methods = {method.name for method in cache.description.methods}
    assert methods == {
        "Get", "GetMany", "Read", "Set", "Write", "Delete", "Increment", "Touch", "DropTag", "Flush", "Watch", "Stats",
    }  # fmt: skip


def test_items(cache):
    key = b"a/b\0\xff"
    assert not cache.Get(key=key).found
    stored = cache.Set(key=key, value=b"value", flags=7)
    assert cache.outcome(stored) == "DONE"
    found = cache.Get(key=key)
    assert (found.found, found.value, found.flags, found.cas) == (True, b"value", 7, stored.cas)
    assert not found.HasField("ttl")
    assert cache.outcome(cache.Touch(key=key, ttl=seconds(100))) == "DONE"
    assert cache.Get(key=key).ttl.seconds in range(80, 101)
    assert cache.outcome(cache.Touch(key=b"none", ttl=seconds(100))) == "NOT_FOUND"
    assert cache.outcome(cache.Delete(key=key)) == "DONE"
    assert cache.outcome(cache.Delete(key=key)) == "NOT_FOUND"
    cache.Set(key=b"k" * 1024, value=b"")
    assert cache.Get(key=b"k" * 1024).found
    for key in (b"", b"k" * 1025):
        assert code(lambda key=key: cache.Get(key=key)) == ("INVALID_ARGUMENT", "A key has 1 to 1024 bytes.")
        assert code(lambda key=key: cache.Set(key=key))[0] == "INVALID_ARGUMENT"
        assert code(lambda key=key: cache.GetMany(keys=[b"good", key]))[0] == "INVALID_ARGUMENT"


def test_items_are_those_of_memcached(cache, server):
    client = pymemcache.Client((server.host, server.port), default_noreply=False)
    client.set("shared", b"by text", flags=9)
    found = cache.Get(key=b"shared")
    assert (found.value, found.flags) == (b"by text", 9)
    cache.Set(key=b"shared", value=b"by gRPC", ttl=seconds(1000))
    assert client.get("shared") == b"by gRPC"
    assert cache.outcome(cache.Set(key=b"new", value=b"1", cas=int(client.gets("shared")[1]))) == "NOT_FOUND"
    assert cache.outcome(cache.Set(key=b"shared", value=b"2", cas=int(client.gets("shared")[1]))) == "DONE"


def test_conditions(cache):
    assert cache.outcome(cache.Set(key=b"k", value=b"1", present=True)) == "NOT_FOUND"
    first = cache.Set(key=b"k", value=b"1", absent=True)
    assert cache.outcome(first) == "DONE"
    assert cache.outcome(cache.Set(key=b"k", value=b"2", absent=True)) == "EXISTS"
    second = cache.Set(key=b"k", value=b"2", cas=first.cas)
    assert cache.outcome(second) == "DONE" and second.cas != first.cas
    assert cache.outcome(cache.Set(key=b"k", value=b"3", cas=first.cas)) == "EXISTS"
    assert cache.outcome(cache.Delete(key=b"k", cas=first.cas)) == "EXISTS"
    assert cache.Get(key=b"k").value == b"2"
    assert cache.outcome(cache.Delete(key=b"k", cas=second.cas)) == "DONE"
    assert code(lambda: cache.Set(key=b"k", absent=False))[0] == "INVALID_ARGUMENT"


def test_times(cache):
    cache.Set(key=b"short", value=b"1", ttl=seconds(2.5))
    assert cache.Get(key=b"short").found
    wait_until(lambda: not cache.Get(key=b"short").found, "the expiry")
    for wrong in (seconds(0), seconds(-1), seconds(1 << 33)):
        assert code(lambda wrong=wrong: cache.Set(key=b"k", ttl=wrong))[0] == "INVALID_ARGUMENT"
        assert code(lambda wrong=wrong: cache.Flush(delay=wrong))[0] == "INVALID_ARGUMENT"
    cache.Set(key=b"kept", value=b"1")
    cache.Flush(delay=seconds(3))
    assert cache.Get(key=b"kept").found
    wait_until(lambda: not cache.Get(key=b"kept").found, "the flush")


def test_numbers(cache):
    assert not cache.Increment(key=b"n").HasField("value")
    assert cache.Increment(key=b"n", initial=5, ttl=seconds(60)).value == 5
    assert cache.Get(key=b"n").ttl.seconds in range(40, 61)
    assert cache.Increment(key=b"n").value == 6
    assert cache.Increment(key=b"n", by=10).value == 16
    assert cache.Increment(key=b"n", by=-20).value == 0
    assert cache.Increment(key=b"n", by=0).value == 0
    cache.Set(key=b"n", value=b"18446744073709551615")
    assert cache.Increment(key=b"n").value == 0
    cache.Set(key=b"n", value=b"text")
    assert code(lambda: cache.Increment(key=b"n"))[0] == "FAILED_PRECONDITION"


@pytest.mark.parametrize("length", LENGTHS)
def test_values_of_all_lengths(cache, length):
    value = os.urandom(length)
    assert cache.outcome(cache.Set(key=b"set", value=value)) == "DONE"
    pieces = [value[at : at + 50_000] for at in range(0, length, 50_000)]
    assert cache.outcome(cache.write(pieces, key=b"written", flags=3)) == "DONE"
    for key, flags in ((b"set", 0), (b"written", 3)):
        assert cache.Get(key=key).value == value
        head, read = cache.read(key)
        assert (head.found, head.length, head.flags) == (True, length, flags) and read == value


def test_what_is_no_value(cache, server):
    limit = int(server.stats("settings")["item_size_max"])
    too_long = bytes(limit + 1)
    assert code(lambda: cache.Set(key=b"k", value=too_long))[0] == "INVALID_ARGUMENT"
    assert code(lambda: cache.write([too_long[: 1 << 16]], key=b"k", length=limit + 1))[0] == "INVALID_ARGUMENT"
    assert code(lambda: cache.write([b"x"], key=b"k", length=1 << 63))[0] == "INVALID_ARGUMENT"
    for length in (1, 4, 200_000):
        for sent in (0, length - 1, length + 1):
            refused = code(lambda sent=sent, length=length: cache.write([bytes(sent)], key=b"k", length=length))
            assert refused[0] == "INVALID_ARGUMENT" and "length" in refused[1]
    request, head = cache.message("WriteRequest"), cache.message("WriteHead")
    item = head(item=cache.message("SetRequest")(key=b"k"), length=2)
    for messages in (
        [],
        [request()],
        [request(data=b"ab")],
        [request(head=item), request(data=b"a"), request(head=item)],
        [request(head=head(length=2))],
        [request(head=head(item=cache.message("SetRequest")(key=b"k", value=b"ab"), length=2))],
    ):
        assert code(lambda messages=messages: cache.Write(iter(messages)))[0] == "INVALID_ARGUMENT"
    assert not cache.Get(key=b"k").found
    assert not cache.read(b"k")[0].found


def test_many_keys(cache):
    keys = [b"k%d" % n for n in range(1000)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: cache.Set(key=keys[n], value=b"%d" % n * (n % 7)), range(0, 1000, 2)))
    answers = list(cache.GetMany(keys=keys))
    expected = [b"%d" % n * (n % 7) if n % 2 == 0 else None for n in range(1000)]
    assert [answer.value if answer.found else None for answer in answers] == expected
    assert list(cache.GetMany(keys=[])) == []
    assert len(list(cache.GetMany(keys=[b"k0"] * 10_000))) == 10_000
    assert code(lambda: cache.GetMany(keys=[b"k0"] * 10_001))[0] == "INVALID_ARGUMENT"


def test_many_large_values(cache):
    """They are more together than may be on the way at the same time."""
    values = [os.urandom(900_000) for _ in range(20)]
    for n, value in enumerate(values):
        cache.write([value], key=b"large%d" % n)
    answers = cache.GetMany(keys=[b"large%d" % n for n in range(20)])
    for value, answer in zip(values, answers, strict=True):
        assert answer.value == value


def test_tags(cache):
    cache.Set(key=b"tagged", value=b"1", tags=[b"news", b"\xffuser 42"])
    cache.write([bytes(200_000)], key=b"large", tags=[b"news"])
    cache.Set(key=b"plain", value=b"1")
    assert cache.outcome(cache.DropTag(tag=b"other")) == "NOT_FOUND"
    assert cache.outcome(cache.DropTag(tag=b"news")) == "DONE"
    assert [cache.Get(key=key).found for key in (b"tagged", b"large", b"plain")] == [False, False, True]
    assert code(lambda: cache.Set(key=b"k", tags=[b"t%d" % n for n in range(8)]))[0] == "INVALID_ARGUMENT"
    for wrong in (b"", b"t" * 251):
        assert code(lambda wrong=wrong: cache.Set(key=b"k", tags=[wrong]))[0] == "INVALID_ARGUMENT"
        assert code(lambda wrong=wrong: cache.DropTag(tag=wrong))[0] == "INVALID_ARGUMENT"


def test_statistics(cache, server):
    def page(**topic):
        return {entry.name: entry.value for entry in cache.Stats(**topic).statistics}

    assert page()["version"] == page(topic="general")["version"] == server.stats()["version"]
    assert page(topic="settings")["num_threads"] == "2"
    assert code(lambda: cache.Stats(topic="none"))[0] == "INVALID_ARGUMENT"


def test_deadlines(cache):
    assert cache.Get(key=b"k", timeout=30).found is False
    begun = time.monotonic()
    watch = cache.Watch(timeout=0.5)
    assert code(lambda: watch)[0] == "DEADLINE_EXCEEDED"
    assert 0.4 < time.monotonic() - begun < 10


def test_a_deadline_is_kept_by_the_server(server, cache):
    """Over a connection of the test's own, because a client ends its calls by itself."""
    request = cache.message("WatchRequest")().SerializeToString()
    command = f"curl -s -o /dev/null -D - --http2-prior-knowledge -X POST --data-binary @- http://{server.grpc_address}"
    ended = subprocess.run(
        f"{command}/larder.v1.Cache/Watch -H content-type:application/grpc -H te:trailers -H grpc-timeout:300m -m 20",
        shell=True, input=b"\0" + len(request).to_bytes(4) + request, capture_output=True,
    )  # fmt: skip
    assert ended.returncode == 0 and b"grpc-status: 4" in ended.stdout, ended
    refused = subprocess.run(
        f"{command}/larder.v1.Cache/Watch -H content-type:application/grpc -H grpc-timeout:soon -m 20",
        shell=True, input=b"", capture_output=True,
    )  # fmt: skip
    assert b"grpc-status: 3" in refused.stdout, refused


def watched(cache, count, act, **filter):
    """The first `count` events, of which `act` is the cause."""
    stream = cache.Watch(**filter)
    # Watching begins some time after the call, which nobody is told of.
    seen, ready = [], threading.Event()

    def collect():
        for message in stream:
            if message.event.key == b"begin":
                ready.set()
            else:
                seen.append(message)
                if len(seen) == count:
                    return

    reader = threading.Thread(target=collect)
    reader.start()

    def begins():
        cache.Set(key=b"begin", value=b"1")
        cache.Get(key=b"begin")
        return ready.wait(0.05)

    wait_until(begins, "an event")
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
    events = [message.event for message in watched(cache, 5, act)]
    seen = [(names[event.kind], event.key, event.length) for event in events]
    # A store looks its key up first, and so does a removal.
    stored, hit, missed, removed = ("STORED", b"k", 5), ("HIT", b"k", 5), ("MISS", b"none", 0), ("REMOVED", b"k", 5)
    assert [event for event in seen if event in (stored, hit, missed, removed)][:3] == [stored, hit, missed], seen
    first = events[seen.index(stored)]
    assert first.ttl.seconds in range(80, 101) and abs(first.time.seconds - time.time()) < 60


def test_events_of_one_kind_and_prefix(cache, server):
    client = pymemcache.Client((server.host, server.port), default_noreply=False)

    def act():
        for n in range(100):
            client.set(f"other{n}", b"1")
            client.set(f"begin{n}", b"1")
            client.delete(f"begin{n}")

    removed = [cache.kinds["EVENT_KIND_STORED"].number]
    events = watched(cache, 100, act, kinds=removed, prefix=b"begin")
    assert [message.event.key for message in events] == [b"begin%d" % n for n in range(100)]


def test_evictions_are_events(start):
    with start("-t", "1", "-m", "8", engine="segment", grpc=True) as server, Cache(server.grpc_address) as cache:
        evicted = cache.kinds["EVENT_KIND_EVICTED"].number

        def act():
            for n in range(200):
                cache.Set(key=b"%d" % n, value=bytes(100_000))

        # The first event that comes is none of an eviction: it shows that the watch has begun.
        stored = cache.kinds["EVENT_KIND_STORED"].number
        events = watched(cache, 250, act, kinds=[evicted, stored])
        assert {message.event.kind for message in events} == {evicted, stored}


def test_a_slow_watcher_loses_events_and_is_told(cache, server):
    """The server neither waits nor keeps everything."""
    stream, begins = cache.Watch(kinds=[cache.kinds["EVENT_KIND_MISS"].number]), threading.Event()

    def look():
        with Cache(server.grpc_address) as other:
            while not begins.wait(0.02):
                other.Get(key=b"begin")

    looking = threading.Thread(target=look)
    looking.start()
    assert next(stream).event.key == b"begin"
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
        """Whether the places of those who have gone are free."""
        stream = cache.Watch(timeout=0.5, kinds=[1])
        return code(lambda: stream)[0] == "DEADLINE_EXCEEDED"

    wait_until(is_watched, "a free place")
    with start("-t", "1", "-W", grpc=True) as closed, Cache(closed.grpc_address) as cache:
        assert code(lambda: cache.Watch())[0] == "PERMISSION_DENIED"


def test_health(start):
    server = start("-t", "1", grpc=True)
    with contextlib.ExitStack() as stack, grpc.insecure_channel(server.grpc_address, options=OPTIONS) as channel:
        stack.callback(server.stop)
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest
        for service in ("", "larder.v1.Cache"):
            assert health.Check(request(service=service)).status == health_pb2.HealthCheckResponse.SERVING
        assert code(lambda: health.Check(request(service="other")))[0] == "NOT_FOUND"
        statuses = health.Watch(request())
        assert next(statuses).status == health_pb2.HealthCheckResponse.SERVING
        unknown = health.Watch(request(service="other"))
        assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        server.process.send_signal(signal.SIGTERM)
        assert next(statuses).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert list(statuses) == []
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("flags", [["-Y"], ["-S"]])
def test_logins(start, tmp_path, monkeypatch, flags):
    tokens = tmp_path / "tokens"
    tokens.write_text("app:secret\nprobe:looks:read\n")
    passwords = tmp_path / "passwords"
    passwords.write_text("user:pass\n")
    options = ["-Y", str(passwords)] if flags == ["-Y"] else ["-S"]
    monkeypatch.setenv("MEMCACHED_SASL_PWDB", str(passwords))
    basic = "Basic " + base64.b64encode(b"user:pass").decode()
    with start("-t", "1", *options, "--token-file", str(tokens), grpc=True) as server:
        address = server.grpc_address
        for wrong in (None, "Bearer guess", "Basic " + base64.b64encode(b"user:guess").decode()):
            with grpc.insecure_channel(address, options=OPTIONS) as channel:
                get = channel.unary_unary("/larder.v1.Cache/Get")
                metadata = [("authorization", wrong)] if wrong else []
                assert code(lambda get=get, metadata=metadata: get(b"", metadata=metadata))[0] == "UNAUTHENTICATED"
                health = health_pb2_grpc.HealthStub(channel)
                assert health.Check(health_pb2.HealthCheckRequest()).status == 1
        for right in (basic, "Bearer secret"):
            with Cache(address, right) as cache:
                assert cache.outcome(cache.Set(key=b"k", value=b"1")) == "DONE"
        with Cache(address, "Bearer looks") as cache:
            assert cache.Get(key=b"k").value == b"1"
            assert len(list(cache.GetMany(keys=[b"k"]))) == 1
            assert cache.read(b"k")[1] == b"1" and cache.Stats().statistics
            for change in (
                lambda: cache.Set(key=b"k"),
                lambda: cache.write([b"1"], key=b"k"),
                lambda: cache.Delete(key=b"k"),
                lambda: cache.Increment(key=b"k"),
                lambda: cache.Touch(key=b"k"),
                lambda: cache.DropTag(tag=b"t"),
                lambda: cache.Flush(),
            ):
                assert code(change)[0] == "PERMISSION_DENIED"


def test_what_the_server_does_not_allow(start):
    with start("-t", "1", "-F", grpc=True) as server, Cache(server.grpc_address) as cache:
        assert code(lambda: cache.Flush())[0] == "PERMISSION_DENIED"


def test_engines_without_tags(start):
    with start("-t", "1", engine="moka", grpc=True) as server, Cache(server.grpc_address) as cache:
        assert cache.outcome(cache.Set(key=b"k", value=b"1")) == "DONE"
        assert code(lambda: cache.Set(key=b"k", tags=[b"t"]))[0] == "UNIMPLEMENTED"
        assert code(lambda: cache.DropTag(tag=b"t"))[0] == "UNIMPLEMENTED"


def test_one_address_for_http_and_grpc(start):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with start("-t", "1", "--http-listen", address, "--grpc-listen", address):
        with Cache(address) as cache:
            cache.Set(key=b"k", value=b"by gRPC")
        url = f"http://{address}/larder.v1.Cache/Flush"
        for pretence in (["--http1.1"], ["--http2-prior-knowledge", "-H", f"Origin: http://{address}"]):
            page = ["curl", "-s", "-D", "-", *pretence, "-H", "Content-Type: application/grpc", "--data-binary", "@-", url]
            refused = subprocess.run(page, input=bytes(5), capture_output=True, check=True).stdout
            assert b"grpc-status: 7" in refused, "a page in a browser can't use gRPC"
        for version in ("--http1.1", "--http2-prior-knowledge"):
            assert subprocess.check_output(["curl", "-s", version, f"http://{address}/v1/keys/k"]) == b"by gRPC"


def test_unknown_services_and_methods(server):
    with grpc.insecure_channel(server.grpc_address, options=OPTIONS) as channel:
        for path in ("/larder.v1.Cache/Guess", "/larder.v2.Cache/Get", "/nothing"):
            assert code(lambda path=path: channel.unary_unary(path)(b""))[0] == "UNIMPLEMENTED"


def test_malformed_messages(server):
    with grpc.insecure_channel(server.grpc_address, options=OPTIONS) as channel:
        get = channel.unary_unary("/larder.v1.Cache/Get")
        for message in (b"\xff", b"\x0a\xff", b"\x0a\x05ab", b"\x08", b"\x0d\0"):
            assert code(lambda message=message: get(message))[0] == "INVALID_ARGUMENT", message


def test_metrics_tell_interfaces_apart(start):
    with start("-t", "1", http=True, grpc=True) as server, Cache(server.grpc_address) as cache:
        url = f"http://{server.http_address}/metrics"

        def value(metric):
            text = subprocess.check_output(["curl", "-sS", "--noproxy", "*", url], text=True)
            found = [line.split()[-1] for line in text.splitlines() if line.startswith(metric + " ")]
            assert len(found) == 1, (metric, text)
            return float(found[0])

        http, grpc = ('larder_requests_total{interface="%s"}' % name for name in ("http", "grpc"))
        before = value(grpc), value(http)
        for _ in range(10):
            cache.Get(key=b"k")
        assert value(grpc) - before[0] == 10
        assert value(http) - before[1] == 2
        # curl's connection and that of gRPC.
        assert value('larder_connections{interface="web",state="open"}') >= 2


def test_requests_are_counted(cache, server):
    before = server.stats()
    cache.Set(key=b"k", value=b"1")
    cache.Get(key=b"k")
    cache.Get(key=b"none")
    after = server.stats()
    for name, more in (("cmd_set", 1), ("cmd_get", 2), ("get_hits", 1), ("get_misses", 1)):
        assert int(after[name]) - int(before[name]) == more, name


@pytest.fixture(scope="module")
def grpcurl():
    """The folder of grpcurl, which is built once."""
    assert shutil.which("go"), "Go is not installed"
    folder = ROOT / "target" / "go" / "bin"
    built = subprocess.run(
        ["go", "build", "-o", f"{folder}/", "github.com/fullstorydev/grpcurl/cmd/grpcurl"],
        cwd=Path(__file__).parent / "grpcurl",
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert built.returncode == 0, built.stderr
    return folder


# The first build downloads and compiles what grpcurl is made of.
@pytest.mark.timeout(900)
def test_the_commands_of_the_documentation(server, cache, grpcurl):
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "grpc.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if not block.startswith("larderd")]
    expected = [line[2:] for line in block.splitlines() if line.startswith("# ")]
    script = block.replace("127.0.0.1:50051", server.grpc_address)
    environment = {**os.environ, "PATH": f"{grpcurl}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.splitlines() == expected
