"""The service around items: reflection, health, logins, deadlines, errors and statistics."""

import base64
import contextlib
import signal
import socket
import subprocess
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_client import OPTIONS, Cache, code

pytestmark = pytest.mark.larder


def test_the_service_is_found_by_reflection(cache):
    assert set(cache.services) >= {"larder.v1.Cache", "grpc.health.v1.Health"}
    methods = {method.name for method in cache.description.methods}
    assert methods == {
        "Get", "GetMany", "Read", "Set", "Write", "Delete", "Increment", "Touch", "DropTag", "Flush", "Watch", "Stats",
    }  # fmt: skip


def test_statistics(cache, server):
    def page(**topic):
        return {entry.name: entry.value for entry in cache.Stats(**topic).statistics}

    assert page()["version"] == page(topic="general")["version"] == server.stats()["version"]
    assert page(topic="settings")["num_threads"] == "2"
    assert code(lambda: cache.Stats(topic="none"))[0] == "INVALID_ARGUMENT"


def test_deadlines(cache):
    assert cache.Get(key=b"k", timeout=30).found is False
    start_time = time.monotonic()
    watch = cache.Watch(timeout=0.5)
    assert code(lambda: watch)[0] == "DEADLINE_EXCEEDED"
    assert 0.4 < time.monotonic() - start_time < 10


def test_the_server_enforces_deadlines(server, cache):
    """Uses curl, because a gRPC client enforces deadlines itself."""
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


def test_forbidden_operations_are_refused(start):
    with start("-t", "1", "-F", grpc=True) as server, Cache(server.grpc_address) as cache:
        assert code(lambda: cache.Flush())[0] == "PERMISSION_DENIED"


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
        # At least the connections of curl and of the gRPC client are open.
        assert value('larder_connections{interface="web",state="open"}') >= 2


def test_requests_are_counted(cache, server):
    before = server.stats()
    cache.Set(key=b"k", value=b"1")
    cache.Get(key=b"k")
    cache.Get(key=b"none")
    after = server.stats()
    for name, more in (("cmd_set", 1), ("cmd_get", 2), ("get_hits", 1), ("get_misses", 1)):
        assert int(after[name]) - int(before[name]) == more, name
