"""Tags over each interface, and tags that one interface sets and another drops."""

import re
import threading

import httpx
import pytest
import redis

from pages import check_block, client_blocks
from tiers import long

pytestmark = pytest.mark.larder


@pytest.fixture(scope="module", params=["segment", long("delayed")])
def server(request, start):
    if request.config.getoption("runtime", None):
        pytest.skip("HTTP has a thread of its own: once is enough")
    with start("-t", "2", engine=request.param, resp=True, http=True) as server:
        yield server


def talk(server, *requests):
    """Sends requests followed by `mn`. Returns the replies that precede the reply to `mn`."""
    with server.connect() as sock, sock.makefile("rb") as answers:
        sock.sendall(b"".join(requests) + b"mn\r\n")
        lines = iter(answers.readline, b"MN\r\n")
        return b"".join(lines)


def ms(key, value, flags):
    return f"ms {key} {len(value)} {flags}\r\n{value}\r\n".encode()


def test_meta(server):
    talk(server, b"flush_all\r\n")
    assert talk(server, ms("a", "1", "Gx,y"), ms("b", "2", "Gy"), ms("c", "3", "")) == b"HD\r\n" * 3
    assert talk(server, b"mg a v Gx\r\n") == b"CLIENT_ERROR invalid flag\r\n", "it would be lost"
    assert talk(server, b"mt unknown\r\n") == b"NF\r\n"
    assert talk(server, b"mt x Oabc k q\r\n", b"mt x Oabc k\r\n") == b"HD Oabc kx\r\n"
    assert talk(server, b"mg a v\r\nmg b v\r\nmg c v\r\n") == b"EN\r\nVA 1\r\n2\r\nVA 1\r\n3\r\n"
    assert talk(server, b"mt eQ== b\r\n", b"mg b v\r\n") == b"HD\r\nEN\r\n", "the tag in base64"
    # An item created on a miss gets the tags, and an append keeps them.
    assert talk(server, b"mg n N0 Gx\r\n", b"ma i N0 J5 Gx\r\n", ms("p", "1", "MA N0 Gx")) == b"HD W\r\nHD\r\nHD\r\n"
    added = talk(server, ms("p", "2", "MA"), b"ma i\r\n", b"mg p T99 v\r\n", b"append n 0 0 1\r\n1\r\n")
    assert added == b"HD\r\nHD\r\nVA 2\r\n12\r\nSTORED\r\n"
    assert talk(server, b"mt x\r\n", b"mg p\r\nmg i\r\nmg n\r\n") == b"HD\r\n" + b"EN\r\n" * 3
    # A set without tags removes the tags.
    assert talk(server, ms("a", "1", "Gx"), b"set a 0 0 1\r\n2\r\n", b"mt x\r\n", b"mg a v\r\n") == (
        b"HD\r\nSTORED\r\nHD\r\nVA 1\r\n2\r\n"
    )
    seven = ",".join(f"t{n}" for n in range(7))
    assert talk(server, ms("a", "1", f"G{seven}"), b"mt t6\r\n", b"mg a\r\n") == b"HD\r\nHD\r\nEN\r\n"
    for wrong in (f"G{seven},t7", "G", "Gx,", f"G{'t' * 251}", "Gx Gy"):
        answer = talk(server, ms("a", "1", wrong))
        assert answer.startswith(b"CLIENT_ERROR ") and answer.count(b"\r\n") == 1, wrong
    for wrong in (b"md a Gx\r\n", b"mt\r\n", b"mt x v\r\n", b"mt %s\r\n" % (b"t" * 251)):
        assert talk(server, wrong).startswith(b"CLIENT_ERROR "), wrong


def test_resp(server):
    with redis.Redis(port=server.resp_port, socket_timeout=60) as client:
        client.flushall()
        assert client.execute_command("SET", "a", 1, "TAGS", 2, "x", "with space", "EX", 90) is True
        assert client.execute_command("SET", "b", 1, "NX", "TAGS", 1, b"\xff\x00") is True
        assert 85 <= client.ttl("a") <= 90
        assert client.incr("a") == 2 and client.append("b", "!") == 2 and client.persist("a")
        assert client.execute_command("TAG.DROP", "nothing") == 0
        assert client.execute_command("TAG.DROP", "with space") == 1
        assert client.get("a") is None and client.get("b") == b"1!"
        with client.pipeline() as pipe:
            pipe.execute_command("SET", "c", 1, "TAGS", 1, "y").execute_command("TAG.DROP", "y").get("c")
            assert pipe.execute() == [True, 1, None]
        assert client.execute_command("TAG.DROP", b"\xff\x00") == 1 and client.get("b") is None
        for wrong, error in [
            (("TAGS",), "syntax error"),
            (("TAGS", 0), "1 to 7 tags"),
            (("TAGS", 8, *"abcdefgh"), "1 to 7 tags"),
            (("TAGS", "x"), "not an integer"),
            (("TAGS", 2, "x"), "syntax error"),
            (("TAGS", 1, ""), "1 to 250 bytes"),
            (("TAGS", 1, "x", "TAGS", 1, "y"), "syntax error"),
        ]:
            with pytest.raises(redis.ResponseError, match=error):
                client.execute_command("SET", "d", 1, *wrong)
        assert client.get("d") is None


def test_http(server):
    with httpx.Client(base_url=f"http://{server.http_address}", trust_env=False, timeout=60) as http:
        http.post("/v1/flush")
        assert http.put("/v1/keys/a", params={"tags": "x,y", "ttl": 60}, content=b"1").status_code == 201
        assert http.put("/v1/keys/large", params={"tags": "x"}, content=b"1" * 900_000).status_code == 201
        sets = [{"op": "set", "key": "b", "value": "2", "tags": ["y", "with, comma"]}]
        assert http.post("/v1/batch", json={"operations": sets}).json()["results"][0]["status"] == 201
        assert http.delete("/v1/tags/nothing").status_code == 404
        assert http.delete("/v1/tags/x").status_code == 204
        assert [http.get(f"/v1/keys/{key}").status_code for key in ("a", "large", "b")] == [404, 404, 200]
        assert http.delete("/v1/tags/with%2C%20comma").status_code == 204
        assert http.get("/v1/keys/b").status_code == 404
        for wrong in ("a,,b", "", "a,b,c,d,e,f,g,h", "t" * 251):
            answer = http.put("/v1/keys/a", params={"tags": wrong}, content=b"1")
            assert answer.status_code == 400 and "tag" in answer.json()["detail"]
        assert http.delete("/v1/tags/" + "t" * 251).status_code == 400


def test_a_drop_reaches_the_items_of_every_interface(server):
    with (
        redis.Redis(port=server.resp_port, socket_timeout=60) as client,
        httpx.Client(base_url=f"http://{server.http_address}", trust_env=False, timeout=60) as http,
    ):
        drops = [
            lambda: talk(server, b"mt shared\r\n"),
            lambda: client.execute_command("TAG.DROP", "shared"),
            lambda: http.delete("/v1/tags/shared"),
        ]
        for drop in drops:
            talk(server, ms("m", "1", "Gshared"))
            client.execute_command("SET", "r", 1, "TAGS", 1, "shared")
            http.put("/v1/keys/h", params={"tags": "shared"}, content=b"1")
            assert client.exists("m", "r", "h") == 3
            drop()
            assert client.exists("m", "r", "h") == 0


@pytest.mark.parametrize("length", [2, 40_000, 900_000])
def test_a_value_that_arrives_after_a_drop_of_its_tag_is_invalid(server, length):
    with server.connect() as sock:
        sock.sendall(f"ms slow {length} Gslow\r\n".encode() + b"x" * (length // 2))
        # `stats conns` lists the upload once it has started.
        done = threading.Event()
        while not done.wait(0.02):
            if re.search(rb"conn_nread|conn_swallow", talk(server, b"stats conns\r\n")):
                done.set()
        assert talk(server, b"mt slow\r\n") == b"HD\r\n"
        sock.sendall(b"x" * (length - length // 2) + b"\r\n")
        assert sock.recv(100) == b"HD\r\n"
    assert talk(server, b"mg slow\r\n") == b"EN\r\n"


def test_engines_without_tags(start):
    with start("-t", "2", engine="moka", resp=True, http=True) as server:
        refused = b"SERVER_ERROR this engine keeps no tags\r\n"
        assert talk(server, ms("a", "1", ""), ms("a", "2", "Gx"), b"mt x\r\n") == b"HD\r\n" + refused * 2
        assert talk(server, ms("large", "1" * 300_000, "Gx"), b"mg a v\r\n") == refused + b"VA 1\r\n1\r\n"
        with redis.Redis(port=server.resp_port, socket_timeout=60) as client:
            for command in (("SET", "a", 3, "TAGS", 1, "x"), ("TAG.DROP", "x")):
                with pytest.raises(redis.ResponseError, match="this engine keeps no tags"):
                    client.execute_command(*command)
            assert client.get("a") == b"1"
        with httpx.Client(base_url=f"http://{server.http_address}", trust_env=False, timeout=60) as http:
            assert http.put("/v1/keys/a", params={"tags": "x"}, content=b"1").status_code == 501
            assert http.delete("/v1/tags/x").status_code == 501


@pytest.mark.parametrize("block", client_blocks("tags.md"))
def test_the_commands_of_the_documentation(server, block):
    addresses = {"8080": server.http_address.rpartition(":")[2], "6379": server.resp_port, "11211": server.port}
    check_block(block, addresses)
