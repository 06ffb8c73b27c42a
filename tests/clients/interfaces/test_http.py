"""HTTP with clients of both versions, with the commands of docs/http.md, and with requests generated from the API's
description."""

import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pymemcache
import pytest

from pages import check_block, client_blocks
from server import has_read_all, wait_until
from tiers import by_tier, long

pytestmark = pytest.mark.larder

SCHEMATHESIS = Path(__file__).parents[3] / ".venv" / "bin" / "schemathesis"
# The number of random requests that schemathesis generates for each operation, and the minimum total number of its
# requests.
EXAMPLES, EXAMPLES_OF_LONG = 15, 100
CASES_MIN, CASES_MIN_OF_LONG = 500, 1000
SEED = int(os.environ.get("LARDER_SEED", "1"))
LENGTHS = [0, 1, 1000, 65_535, 65_536, 65_537, 300_000, 900_000]


@pytest.fixture(autouse=True, scope="module")
def one_runtime(request):
    if request.config.getoption("--runtime"):
        pytest.skip("HTTP has a thread of its own, whatever the runtime of the workers")


@pytest.fixture(scope="module", params=["segment", long("delayed")])
def server(request, start):
    with start("-t", "2", engine=request.param, http=True) as server:
        yield server


def client_of(server, version=1, **more):
    return httpx.Client(
        base_url=f"http://{server.http_address}",
        http1=version == 1,
        http2=version == 2,
        timeout=60,
        trust_env=False,
        **more,
    )


@pytest.fixture(params=[1, 2], ids=["HTTP/1.1", "HTTP/2"])
def http(request, server):
    with client_of(server, request.param) as client:
        assert client.post("/v1/flush").status_code == 204
        yield client


def problem(response, status):
    """Checks that a response has this status and a problem document, and returns the document's detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status and body["title"] and body["type"] == "about:blank"
    return body["detail"]


def test_items(http):
    url = "/v1/keys/a%2Fb%00%ff"
    assert "no item" in problem(http.get(url), 404)
    assert http.put(url, content=b"value", headers={"Content-Type": "text/plain"}).status_code == 201
    found = http.get(url)
    assert found.status_code == 200 and found.content == b"value"
    assert found.headers["content-type"] == "text/plain; charset=utf-8"
    assert found.headers["cache-control"] == "no-cache"
    assert found.headers["content-security-policy"] == "sandbox"
    head = http.head(url)
    assert head.content == b"" and head.headers["content-length"] == "5" and head.headers["etag"] == found.headers["etag"]
    assert http.put(url, content=b"other", params={"ttl": 99.5}).status_code == 204
    found = http.get(url)
    assert found.content == b"other" and found.headers["content-type"] == "application/octet-stream"
    assert re.fullmatch(r"max-age=([89][0-9]|100)", found.headers["cache-control"])
    assert http.delete(url).status_code == 204
    problem(http.delete(url), 404)
    problem(http.get("/v1/keys/"), 404)
    problem(http.put("/v1/keys/" + "k" * 1025, content=b""), 400)
    assert http.put("/v1/keys/" + "k" * 250, content=b"").status_code == 201


def test_items_are_those_of_memcached(http, server):
    memcached = pymemcache.Client((server.host, server.port), default_noreply=False)
    memcached.set("key", b"value", flags=7)
    found = http.get("/v1/keys/key")
    assert found.content == b"value" and found.headers["larder-flags"] == "7"
    http.put("/v1/keys/key", content=b"11", headers={"Larder-Flags": "9"})
    assert memcached.incr("key", 4) == 15
    assert http.get("/v1/keys/key").headers["larder-flags"] == "9"
    before = server.stats()
    http.get("/v1/keys/key")
    after = server.stats()
    assert int(after["get_hits"]) == int(before["get_hits"]) + 1
    memcached.close()


def test_requests_are_watched_and_timed(http, server):
    with server.connect() as sock, sock.makefile("rb") as lines:
        sock.sendall(b"watch fetchers mutations deletions\r\n")
        assert lines.readline() == b"OK\r\n"
        http.put("/v1/keys/watched", content=b"value")
        http.get("/v1/keys/watched")
        http.delete("/v1/keys/watched")
        seen = b""
        while b"item_store" not in seen or b"status=found" not in seen or b"type=deleted" not in seen:
            line = lines.readline()
            assert line
            seen += line
        assert b"type=item_store key=watched status=stored cmd=set" in seen
    counted = server.stats("latency")
    assert all(int(counted[f"{kind}:count"]) > 0 for kind in ("get", "store", "delete"))


def test_unknown_fields_of_queries_are_refused(http):
    """The server must not ignore a misspelled field, or a field that has no meaning for the request."""
    assert http.put("/v1/keys/q", content=b"1").status_code == 201
    for method, path in [
        ("GET", "keys/q"), ("HEAD", "keys/q"), ("DELETE", "keys/q"), ("PUT", "keys/q"), ("POST", "keys/q/append"),
        ("POST", "keys/q/prepend"), ("POST", "keys/q/incr"), ("POST", "keys/q/touch"), ("GET", "keys"),
        ("POST", "batch"), ("GET", "stats/general"), ("POST", "flush"), ("DELETE", "tags/t"),
    ]:  # fmt: skip
        answer = http.request(method, f"/v1/{path}?foo=1", content=b"2" * 50_000 if method in ("PUT", "POST") else None)
        assert answer.status_code == 400, (method, path)
    assert http.get("/v1/keys/q").content == b"1"


def test_every_length(http):
    for length in LENGTHS:
        value = os.urandom(length)
        assert http.put("/v1/keys/long", content=value).status_code in (201, 204)
        assert http.get("/v1/keys/long").content == value
        for first, last in [(0, 0), (length // 3, length // 2), (max(length - 5, 0), length + 9)]:
            part = http.get("/v1/keys/long", headers={"Range": f"bytes={first}-{last}"})
            if first < length:
                assert part.status_code == 206 and part.content == value[first : last + 1]
                end = min(last, length - 1)
                assert part.headers["content-range"] == f"bytes {first}-{end}/{length}"
            else:
                problem(part, 416)
                assert part.headers["content-range"] == f"bytes */{length}"
    last = http.get("/v1/keys/long", headers={"Range": "bytes=-10"})
    assert last.content == value[-10:]
    several = http.get("/v1/keys/long", headers={"Range": "bytes=0-1,5-6"})
    assert several.status_code == 200 and several.content == value
    assert http.post("/v1/keys/long/append", content=b"end").status_code == 204
    assert http.post("/v1/keys/long/prepend", content=b"begin").status_code == 204
    assert http.get("/v1/keys/long").content == b"begin" + value + b"end"
    problem(http.put("/v1/keys/long", content=bytes(1 << 20)), 413)
    problem(http.post("/v1/keys/long/append", content=bytes(900_000)), 413)
    assert http.get("/v1/keys/long").content == b"begin" + value + b"end", "a refused change changes nothing"


def test_a_body_of_unknown_length(http):
    def pieces(count):
        return (b"x" * 1000 for _ in range(count))

    assert http.put("/v1/keys/chunked", content=pieces(60)).status_code == 201
    assert http.get("/v1/keys/chunked").content == b"x" * 60_000
    # The server may have closed the connection before the rest of the body.
    try:
        assert "Content-Length" in problem(http.put("/v1/keys/chunked", content=pieces(70)), 411)
    except httpx.TransportError:
        pass
    assert len(http.get("/v1/keys/chunked").content) == 60_000


def test_conditions(http):
    url = "/v1/keys/key"

    def put(content, **headers):
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return http.put(url, content=content, headers=sent)

    problem(put(b"1", If_Match="*"), 412)
    problem(put(b"1", If_Match='"1"'), 412)
    made = put(b"1", If_None_Match="*")
    assert made.status_code == 201
    first = made.headers["etag"]
    problem(put(b"2", If_None_Match="*"), 412)
    changed = put(b"2", If_Match=first)
    assert changed.status_code == 204
    second = changed.headers["etag"]
    assert second != first
    problem(put(b"3", If_Match=first), 412)
    problem(put(b"3", If_Match=f"W/{second}"), 412)
    problem(put(b"3", If_Match=f"{first}, {second}"), 400)
    problem(put(b"3", If_Match="2"), 400)
    assert http.get(url).content == b"2"
    for known in (second, f'"x", {second}', "*", f"W/{second}"):
        found = http.get(url, headers={"If-None-Match": known})
        assert found.status_code == 304 and found.content == b"" and found.headers["etag"] == second
    assert http.get(url, headers={"If-None-Match": first}).content == b"2"
    problem(http.get(url, headers={"If-Match": first}), 412)
    part = {"Range": "bytes=0-0", "If-Range": first}
    assert http.get(url, headers=part).status_code == 200
    assert http.get(url, headers=part | {"If-Range": second}).status_code == 206
    problem(http.post(f"{url}/incr", headers={"If-Match": first}), 412)
    assert http.post(f"{url}/incr", headers={"If-Match": second}).json() == {"value": 3}
    problem(http.delete(url, headers={"If-Match": second}), 412)
    assert put(b"3", If_Match="*").status_code == 204
    assert http.delete(url, headers={"If-Match": http.get(url).headers["etag"]}).status_code == 204


def test_ranges_and_parts(http):
    url = "/v1/keys/part"
    assert http.put(url, content=b"0123456789").status_code == 201
    for wanted in ("bytes=0-3", "bytes=100-"):
        shown = http.head(url, headers={"Range": wanted})
        assert (shown.status_code, shown.headers["Content-Length"]) == (200, "10"), wanted
    part = http.put(url, content=b"abc", headers={"Content-Range": "bytes 5-7/10"})
    assert part.status_code == 400
    assert http.get(url).content == b"0123456789"
    http.put(url, content=b"")
    for wanted, status in {"bytes=-5": 200, "bytes=-0": 416, "bytes=0-": 416}.items():
        assert http.get(url, headers={"Range": wanted}).status_code == status, wanted
    for stored in ("application/json; charset=utf-8", 'application/json;charset="UTF-8"', "application/json"):
        http.put(url, content=b"{}", headers={"Content-Type": stored})
        assert http.get(url).headers["Content-Type"] == "application/json", stored


def test_numbers_and_expiries(http):
    url = "/v1/keys/n"
    problem(http.post(f"{url}/incr"), 404)
    assert http.post(f"{url}/incr", params={"initial": 5, "ttl": 100}).json() == {"value": 5}
    assert http.post(f"{url}/incr", params={"by": 2**64 - 1}).json() == {"value": 4}
    assert http.post(f"{url}/decr", params={"by": 9}).json() == {"value": 0}
    http.put(url, content=b"text")
    problem(http.post(f"{url}/incr"), 409)
    for wrong in ({"by": -1}, {"by": "x"}, {"bi": 1}, {"by": 2**64}, {"ttl": 0}, {"ttl": "nan"}, {"ttl": 4e9}):
        problem(http.post(f"{url}/incr", params=wrong), 400)
    assert http.post(f"{url}/touch", params={"ttl": 50}).status_code == 204
    assert http.get(url).headers["cache-control"] in ("max-age=50", "max-age=49")
    assert http.post(f"{url}/touch").status_code == 204
    assert http.get(url).headers["cache-control"] == "no-cache"
    http.put(url, content=b"soon gone", params={"ttl": 0.01})
    wait_until(lambda: http.get(url).status_code == 404, "expiry")
    problem(http.post(f"{url}/touch"), 404)


def test_batches(http):
    operations = [{"op": "set", "key": f"k{n}", "value": str(n)} for n in range(300)]
    operations += [{"op": "get", "key": f"k{n}"} for n in range(301)]
    operations += [{"op": "set", "key_base64": "AP8=", "value_base64": "/w==", "ttl": 9, "flags": 3}]
    operations += [{"op": "get", "key_base64": "AP8="}, {"op": "get", "key": ""}]
    operations += [{"op": "delete", "key": "k0"}, {"op": "delete", "key": "k0"}, {"op": "get", "key": "k0"}]
    answer = http.post("/v1/batch", json={"operations": operations})
    assert answer.status_code == 200
    results = answer.json()["results"]
    statuses = [result["status"] for result in results]
    assert statuses == [201] * 300 + [200] * 300 + [404, 201, 200, 400, 204, 404, 404]
    assert [result["value"] for result in results[300:600]] == [str(n) for n in range(300)]
    binary = results[602]
    assert binary["value_base64"] == "/w==" and binary["flags"] == 3 and 0 <= binary["ttl"] <= 9
    problem(http.post("/v1/batch", json={"operations": [{"op": "get", "key": "k"}] * 1001}), 413)
    # The server may reject the request before it has received the complete body.
    try:
        problem(http.post("/v1/batch", content=b" " * (9 << 20)), 413)
    except httpx.TransportError:
        pass
    for wrong in (b"", b"[]", b'{"operations":[{"op":"steal","key":"k"}]}', b'{"operations":[{"op":"get"}]}'):
        problem(http.post("/v1/batch", content=wrong), 400)


def test_all_keys_are_listed(http):
    keys = {f"key-{n}" for n in range(2500)}
    for first in range(0, 2500, 500):
        sets = [{"op": "set", "key": f"key-{n}", "value": "x" * n, "ttl": 99} for n in range(first, first + 500)]
        assert http.post("/v1/batch", json={"operations": sets}).status_code == 200
    http.put("/v1/keys/%ff", content=b"binary")
    found, cursor, pages = [], {}, 0
    while cursor is not None:
        page = http.get("/v1/keys", params={"limit": 300} | cursor).json()
        found += page["keys"]
        cursor = {"cursor": page["cursor"]} if "cursor" in page else None
        pages += 1
    assert 8 <= pages <= 100
    assert {item["key"] for item in found if "key" in item} == keys and len(found) == len(keys) + 1
    (binary,) = [item for item in found if "key" not in item]
    assert binary == {"key_base64": "/w==", "length": 6}
    assert all(item["length"] == int(item["key"][4:]) and 70 <= item["ttl"] <= 99 for item in found if "key" in item)
    for wrong in ({"limit": 0}, {"limit": 1001}, {"cursor": "x"}, {"prefix": "k"}):
        problem(http.get("/v1/keys", params=wrong), 400)
    assert "keys" in http.get("/v1/keys", params={"cursor": 2**64 - 1}).json()


def test_statistics_and_health(http):
    statistics = http.get("/v1/stats/general").json()["statistics"]
    assert statistics["threads"] == 2 and isinstance(statistics["version"], str)
    assert http.get("/v1/stats/latency").json()["statistics"]
    problem(http.get("/v1/stats/secrets"), 404)
    assert "larder_items" in http.get("/metrics").text
    assert http.get("/healthz").text == "ok\n" and http.get("/readyz").status_code == 200
    assert http.get("/openapi.json").json()["openapi"].startswith("3.1")
    problem(http.get("/nothing"), 404)
    assert problem(http.patch("/v1/keys/key"), 405)


def test_a_request_without_host(server):
    """HTTP/1.1 requires the header `Host`, but HTTP/1.0 does not."""
    host, port = server.http_address.split(":")
    for version, status in (("1.1", b"400"), ("1.0", b"200")):
        with socket.create_connection((host, int(port)), timeout=60) as sock:
            sock.sendall(f"GET /healthz HTTP/{version}\r\n\r\n".encode())
            assert sock.makefile("rb").readline().split()[1] == status


def test_pages_of_other_sites(http, server):
    own = f"http://{server.http_address}"
    assert http.get("/healthz", headers={"Host": "localhost:1"}).status_code == 200
    assert "--http-host" in problem(http.get("/healthz", headers={"Host": "evil.example"}), 403)
    assert http.put("/v1/keys/key", content=b"", headers={"Origin": own}).status_code == 201
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert "another site" in problem(http.delete("/v1/keys/key", headers={"Origin": origin}), 403)
    assert http.get("/v1/keys/key").status_code == 200


def test_many_clients_at_once(server):
    """Each client has its own keys, and finds only its own values."""

    def work(number):
        with client_of(server, 1 + number % 2) as client:
            for n in range(100):
                key, value = f"/v1/keys/{number}-{n % 7}", f"{number}:{n}".encode() * (1 + n * 50)
                assert client.put(key, content=value).status_code in (201, 204)
                assert client.get(key).content == value

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


def test_a_shutdown_answers_pending_requests(start):
    """The server answers pending requests before it exits, and does not wait for idle connections."""
    server = start("-t", "2", http=True)
    with client_of(server) as idle, client_of(server) as busy:
        assert idle.get("/healthz").status_code == 200
        go = threading.Event()

        def body():
            yield b"a" * 1000
            wait_until(lambda: has_read_all(server.http_address), "reading the first part")
            go.set()
            time.sleep(0.5)
            yield b"b" * 1000

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            sent = pool.submit(busy.put, "/v1/keys/key", content=body())
            assert go.wait(60)
            start_time = time.monotonic()
            os.kill(server.pid, signal.SIGTERM)
            assert sent.result().status_code == 201
        assert server.process.wait(60) == 0
        assert time.monotonic() - start_time < 10
    server.stop()


def test_logins(start, tmp_path):
    passwords, tokens = tmp_path / "passwords", tmp_path / "tokens"
    passwords.write_text("ann:secret\n")
    tokens.write_text("# programs\nwriter:w-token\nreader:r-token:read\n")
    for file in (passwords, tokens):
        file.chmod(0o644)
    tmp_path.chmod(0o755)
    with start("-Y", str(passwords), "--token-file", str(tokens), http=True) as server, client_of(server) as http:
        url = "/v1/keys/key"
        assert http.get("/healthz").status_code == 200
        refused = http.get(url)
        problem(refused, 401)
        assert refused.headers["www-authenticate"].startswith("Basic")
        assert http.put(url, content=b"1", auth=("ann", "secret")).status_code == 201
        problem(http.get(url, auth=("ann", "wrong")), 401)
        found = http.get(url, auth=("ann", "secret"))
        assert found.content == b"1" and found.headers["cache-control"] == "private, no-cache"

        def bearer(token):
            return {"Authorization": f"Bearer {token}"}

        assert http.put(url, content=b"2", headers=bearer("w-token")).status_code == 204
        assert http.get(url, headers=bearer("r-token")).content == b"2"
        problem(http.put(url, content=b"3", headers=bearer("r-token")), 403)
        problem(http.get(url, headers=bearer("x-token")), 401)
        tokens.write_text("reader:new-token:read\n")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: http.get(url, headers=bearer("new-token")).status_code == 200, "reading the tokens")
        problem(http.get(url, headers=bearer("w-token")), 401)


def test_sites_that_are_allowed(start):
    with start("--http-cors", "https://app.example", "--http-host", "cache.example", http=True) as server:
        with client_of(server) as http:
            site = {"Origin": "https://app.example", "Host": "cache.example"}
            stored = http.put("/v1/keys/key", content=b"1", headers=site)
            assert stored.status_code == 201
            assert stored.headers["access-control-allow-origin"] == "https://app.example"
            headers = "authorization,content-type,if-match,larder-flags"
            preflight = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": headers}
            allowed = http.options("/v1/keys/key", headers=site | preflight)
            assert allowed.status_code == 200 and "PUT" in allowed.headers["access-control-allow-methods"]
            # A browser does not apply `*` to `Authorization`: the reply has to name this header.
            assert allowed.headers["access-control-allow-headers"] == headers
            other = http.get("/v1/keys/key", headers={"Origin": "https://other.example"})
            assert "access-control-allow-origin" not in other.headers


def test_servers_with_restrictions(start):
    with start("-F", "-X", http=True) as server, client_of(server) as http:
        assert "-F" in problem(http.post("/v1/flush"), 403)
        assert "-X" in problem(http.get("/v1/keys"), 403)
    with start(engine="moka", http=True) as server, client_of(server) as http:
        http.put("/v1/keys/a", content=b"1")
        http.put("/v1/keys/b", content=b"1")
        assert len(http.get("/v1/keys").json()["keys"]) == 2
        assert "engine" in problem(http.get("/v1/keys", params={"limit": 1}), 501)


@pytest.mark.parametrize("block", client_blocks("http.md"), ids=lambda block: re.search(r"/v1/\w+/?\w*", block)[0])
def test_the_commands_of_the_documentation(server, block):
    with client_of(server) as http:
        http.post("/v1/flush")
    check_block(block, {"127.0.0.1:8080": server.http_address})


def test_the_commands_of_the_page_on_metrics(start):
    (block,) = client_blocks("metrics.md")
    with start("--metrics-listen", "127.0.0.1:0") as server:
        (port,) = [line.split()[-1] for line in server.ports_file.read_text().splitlines() if line.startswith("METRICS")]
        check_block(block, {"9150": port})


def test_the_description_has_the_limits_of_numbers(http):
    """The server accepts the limits in the description, and refuses numbers beyond them."""
    paths = http.get("/openapi.json").json()["paths"]
    url = "/v1/keys/n"

    def schema(path, method, name):
        (parameter,) = [found for found in paths[path][method]["parameters"] if found.get("name") == name]
        return parameter["schema"]

    def status(method, name, number):
        if name == "Larder-Flags":
            return http.put(url, content=b"1", headers={name: str(number)}).status_code
        path = {"get": "/v1/keys", "put": url, "post": f"{url}/incr"}[method]
        return http.request(method, path, params={name: number}).status_code

    http.put(url, content=b"1")
    for path, method, name, maximum in [
        ("/v1/keys/{key}/incr", "post", "by", 2**64 - 1),
        ("/v1/keys/{key}/incr", "post", "initial", 2**64 - 1),
        ("/v1/keys", "get", "cursor", 2**64 - 1),
        ("/v1/keys/{key}", "put", "Larder-Flags", 2**32 - 1),
    ]:
        described = schema(path, method, name)
        assert (described["minimum"], described["maximum"]) == (0, maximum), name
        assert described["format"] == f"uint{maximum.bit_length()}", name
        for number, is_accepted in ((0, True), (maximum, True), (-1, False), (maximum + 1, False)):
            assert (status(method, name, number) < 300) == is_accepted, (name, number)
    assert schema("/v1/keys/{key}", "put", "ttl")["exclusiveMinimum"] == 0
    assert status("put", "ttl", 0.0001) < 300 and status("put", "ttl", 0) == 400


def test_the_description_has_values_as_bytes(http):
    paths = http.get("/openapi.json").json()["paths"]
    bodies = [paths["/v1/keys/{key}"]["put"]["requestBody"]]
    bodies += [paths[f"/v1/keys/{{key}}/{change}"]["post"]["requestBody"] for change in ("append", "prepend")]
    bodies += [paths["/v1/keys/{key}"]["get"]["responses"][status] for status in ("200", "206")]
    schemas = [body["content"]["application/octet-stream"]["schema"] for body in bodies]
    assert schemas == [{"type": "string", "format": "binary"}] * 5


@pytest.mark.timeout(600)
def test_requests_made_from_the_description(request, server):
    """Random requests that the description permits get only documented replies."""
    done = subprocess.run(
        [
            SCHEMATHESIS,
            "run",
            f"http://{server.http_address}/openapi.json",
            "--max-examples",
            str(by_tier(request.config, EXAMPLES, EXAMPLES_OF_LONG)),
            "--seed",
            str(SEED),
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
            "--phases",
            "examples,coverage,fuzzing",
            "--no-color",
            "--suppress-health-check",
            "all",
        ],
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=server.dir.name,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    cases = re.search(r"(\d[\d,]*) generated", done.stdout)
    least = by_tier(request.config, CASES_MIN, CASES_MIN_OF_LONG)
    assert cases and int(cases.group(1).replace(",", "")) > least, done.stdout[-3000:]
    assert server.alive()
