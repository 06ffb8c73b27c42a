"""HTTP and gRPC through nodes that do not own the items: the replies are the same as those of a server that owns the
items."""

import contextlib
import json
import re

import grpc
import pytest

from group import client, http_of
from grpc_client import Cache, seconds
from server import wait_until
from test_many_groups import cluster, larder, owned

pytestmark = pytest.mark.larder

# Headers that differ between servers or between requests.
VOLATILE = {"date", "etag", "connection", "keep-alive"}


@pytest.fixture(scope="module")
def two_groups(etcd):
    """Provides two groups of two nodes, each with half of the slots."""
    with cluster(etcd, "web", 2, 2, "-I", "2m", http=True, grpc=True) as groups:
        larder(etcd, "move", "web", "--to", "1")
        assert len(owned(etcd, "web")) == 2
        yield [node for group in groups for node in group]


@pytest.fixture(scope="module")
def alone(start):
    with start("-I", "2m", http=True, grpc=True) as server:
        yield server


def rounded_secs(pattern, text):
    """Rounds the seconds in a text to hundreds, which hides the time between requests."""
    return re.sub(pattern, lambda found: str((int(found[1]) + 50) // 100), text)


def http_answers(server, key):
    """Returns the replies of a server to requests of all kinds, without the parts that differ between servers."""
    url, tag = f"/v1/keys/{key}", ""
    large = bytes(number % 251 for number in range(1000)) * 1500
    requests = [
        ("GET", url, {}),
        ("PUT", url, {"content": b"1", "headers": {"If-Match": "*"}}),
        ("PUT", url, {"content": b"1", "headers": {"If-None-Match": "*", "Content-Type": "text/plain"}}),
        ("PUT", url, {"content": b"2", "headers": {"If-None-Match": "*"}}),
        ("GET", url, {}),
        ("HEAD", url, {}),
        ("GET", url, {"headers": {"If-None-Match": "TAG"}}),
        ("PUT", url, {"content": b"41", "params": {"ttl": 1000}, "headers": {"If-Match": "TAG", "Larder-Flags": "77"}}),
        ("PUT", url, {"content": b"x", "headers": {"If-Match": "TAG"}}),
        ("GET", url, {}),
        ("POST", url + "/incr", {}),
        ("POST", url + "/incr", {"params": {"by": 10}}),
        ("POST", url + "/decr", {"params": {"by": 3}}),
        ("POST", url + "/append", {"content": b"!"}),
        ("POST", url + "/prepend", {"content": b"n="}),
        ("GET", url, {}),
        ("POST", url + "/incr", {}),
        ("POST", url + "/touch", {"params": {"ttl": 500}}),
        ("GET", url, {}),
        ("POST", url + "/touch", {}),
        ("GET", url, {"headers": {"Range": "bytes=1-3"}}),
        ("DELETE", url, {"headers": {"If-Match": '"1"'}}),
        ("DELETE", url, {"headers": {"If-Match": "GOT"}}),
        ("DELETE", url, {}),
        ("POST", url + "/touch", {}),
        ("POST", url + "/append", {"content": b"!"}),
        ("POST", url + "/incr", {}),
        ("POST", url + "/incr", {"params": {"initial": 5}}),
        ("PUT", url, {"content": large}),
        ("GET", url, {}),
        ("GET", url, {"headers": {"Range": "bytes=1400000-1400009"}}),
        ("POST", url + "/append", {"content": large}),
        ("PUT", url, {"content": b"x" * (3 << 20)}),
        ("GET", url, {}),
        # The item is too large, so the server changes nothing.
        ("PUT", url, {"content": b"x" * (2 << 20)}),
        ("PUT", url, {"content": b"x" * (2 << 20), "headers": {"If-Match": '"1"'}}),
        ("POST", url + "/append", {"content": b"x" * (2 << 20)}),
        # No value can have these entity tags.
        ("POST", url + "/append", {"content": b"x", "headers": {"If-Match": 'W/"1f"'}}),
        ("POST", url + "/prepend", {"content": b"x", "headers": {"If-Match": '"what"'}}),
        ("GET", url, {}),
        ("PUT", url, {"content": b""}),
        ("GET", url, {}),
        ("PUT", url, {"content": b"x", "params": {"ttl": 0.3}}),
    ]
    answers = []
    with http_of(server) as http:
        for method, path, more in requests:
            headers = {name: {"TAG": tag, "GOT": tag}.get(value, value) for name, value in more.get("headers", {}).items()}
            answer = http.request(method, path, **{**more, "headers": headers})
            # `tag` is the entity tag of the first value. Two later replies replace it, because the requests that follow
            # them need the current tag.
            if "etag" in answer.headers and (not tag or len(answers) in (4, 20)):
                tag = answer.headers["etag"]
            shown = {name: value for name, value in answer.headers.items() if name not in VOLATILE}
            shown["cache-control"] = rounded_secs(r"(\d+)", shown.get("cache-control", ""))
            answers.append((method, path, more.get("headers"), answer.status_code, shown, answer.content))
        wait_until(lambda: http.get(url).status_code == 404, "the end of a short life")
    return answers


def test_http_answers_the_same_through_each_node(two_groups, alone):
    for key in ("k1", "with%20blank%00", "AmazonElastiCache%3Acluster"):
        expected = http_answers(alone, key)
        assert {answer[3] for answer in expected} >= {200, 201, 204, 206, 304, 404, 412, 413}
        for node in two_groups:
            for got, wanted in zip(http_answers(node, key), expected):
                assert got == wanted, node.name


def batch(server, prefix):
    operations = []
    for number in range(100):
        operations += [
            {"op": "get", "key": f"{prefix}{number}"},
            {"op": "set", "key": f"{prefix}{number}", "value": f"v{number}", "flags": number},
            {"op": "set", "key_base64": "AAEg", "value_base64": "AAEC", "ttl": 1000},
            {"op": "get", "key": f"{prefix}{number}"},
            {"op": "get", "key_base64": "AAEg"},
            {"op": "delete", "key": f"{prefix}{number}"},
        ]
    with http_of(server) as http:
        answer = http.post("/v1/batch", content=json.dumps({"operations": operations}))
        assert answer.status_code == 200, answer.text
        http.delete("/v1/keys/%00%01%20")
        # Ignores the time between requests.
        return [{**result, "etag": "etag" in result, "ttl": result.get("ttl", 0) > 900} for result in answer.json()["results"]]


def test_batches_are_answered_the_same_through_each_node(two_groups, alone):
    expected = batch(alone, "b")
    for node in two_groups:
        assert batch(node, "b") == expected, node.name

def grpc_answers(server, key):
    answers = []
    with Cache(server.grpc_address) as cache:

        def told(call):
            try:
                answer = call()
                return str(answer) if not hasattr(answer, "__next__") else [str(one) for one in answer]
            except grpc.RpcError as error:
                return error.code().name, error.details()

        def comparable(answer):
            lines = [line for line in str(answer).splitlines() if not line.strip().startswith("cas:")]
            return rounded_secs(r"seconds: (\d+)", str(lines))

        large = b"0123456789" * 150_000
        cas = 0
        for call in [
            lambda: cache.Get(key=key),
            lambda: cache.Set(key=key, value=b"1", present=True),
            lambda: cache.Set(key=key, value=b"1", flags=7, ttl=seconds(1000), absent=True),
            lambda: cache.Set(key=key, value=b"2", absent=True),
            lambda: cache.Get(key=key),
            lambda: cache.Set(key=key, value=b"40", cas=cas),
            lambda: cache.Set(key=key, value=b"41", cas=1),
            lambda: cache.Increment(key=key, by=2),
            lambda: cache.Increment(key=key, by=-100),
            lambda: cache.Touch(key=key, ttl=seconds(500)),
            lambda: cache.GetMany(keys=[key, b"none", key, b"other"]),
            lambda: cache.Set(key=key, value=b"text"),
            lambda: cache.Increment(key=key),
            lambda: cache.Delete(key=key, cas=1),
            lambda: cache.Delete(key=key),
            lambda: cache.Delete(key=key),
            lambda: cache.Increment(key=key, initial=8, ttl=seconds(100)),
            lambda: cache.write([large[:900_000], large[900_000:]], key=key, flags=3),
            lambda: cache.write([b"short"], key=key, length=6),
            lambda: cache.Get(key=key),
            lambda: [cache.read(key)[0].length, cache.read(key)[1] == large],
            lambda: cache.Set(key=key, value=b""),
            lambda: cache.Get(key=key),
            lambda: cache.Delete(key=key),
            lambda: cache.DropTag(tag=b"a"),
        ]:
            answer = told(call)
            if "cas:" in str(answer) and not cas:
                cas = int(str(answer).partition("cas:")[2].split()[0])
            answers.append(comparable(answer) if isinstance(answer, str) else [comparable(one) for one in answer])
    return answers


def test_grpc_answers_the_same_through_each_node(two_groups, alone):
    for key in (b"g1", b"\x00 binary", b"x" * 250):
        # Groups do not support tags.
        expected = grpc_answers(alone, key)[:-1]
        for node in two_groups:
            got = grpc_answers(node, key)
            assert got[:-1] == expected, node.name
            assert "UNIMPLEMENTED" in got[-1][0], got[-1]


def test_requests_that_can_not_be_forwarded_are_refused(two_groups):
    refused = 0
    for node in two_groups:
        with http_of(node) as http, Cache(node.grpc_address) as cache:
            for number in range(8):
                key = "l" * 300 + str(number)
                answer = http.put(f"/v1/keys/{key}", content=b"1")
                if answer.status_code == 503:
                    refused += 1
                    assert "send requests to the leader" in answer.text
                    with pytest.raises(grpc.RpcError) as error:
                        cache.Get(key=key.encode())
                    assert error.value.code().name == "UNAVAILABLE"
                else:
                    assert answer.status_code in (201, 204)
                    assert cache.Get(key=key.encode()).value == b"1"
    # Each leader owns about half of the keys and rejects the others. A follower rejects all keys.
    assert 16 < refused < 32, refused


def test_a_flush_reaches_all_groups(two_groups):
    flushed = [f"f{number}" for number in range(100)]
    with contextlib.ExitStack() as stack:
        web = [stack.enter_context(http_of(node)) for node in two_groups]
        grpc_to = [stack.enter_context(Cache(node.grpc_address)) for node in two_groups]
        for http, cache in zip(web, grpc_to):
            for flush in (lambda http=http: http.post("/v1/flush").raise_for_status(), cache.Flush):
                assert client(two_groups[0]).set_many({key: "v" for key in flushed}) == []
                flush()
                for node in two_groups:
                    assert client(node).get_many(flushed) == {}, node.name
        # After a delayed flush, items are present until the delay has passed.
        assert client(two_groups[0]).set_many({key: "v" for key in flushed}) == []
        assert web[1].post("/v1/flush", params={"delay": 2}).status_code == 204
        assert len(client(two_groups[3]).get_many(flushed)) == 100
        wait_until(lambda: all(client(node).get_many(flushed) == {} for node in two_groups), "the flush")
