"""`--cluster`: every node answers, and one node leads."""

import time

import httpx
import pymemcache
import pytest
import redis

from group import Group, Node, client, no_leader, wait_for_same_keys
from replicas import ask
from server import LARDERD, ExitedAtStart, Server, wait_until

pytestmark = pytest.mark.larder


def test_any_node_answers_for_all_keys(etcd, engine):
    cluster = ("--cluster", engine)
    with Group(etcd, 3, *cluster, engine=engine) as group:
        for number, node in enumerate(group):
            client(node).set(f"k{number}", f"{number}" * 1000)
        for node in group:
            for number in range(3):
                assert client(node).get(f"k{number}") == b"%d" % number * 1000
            assert client(node).get_many([f"k{n}" for n in range(3)]).keys() == {"k0", "k1", "k2"}
        wait_for_same_keys(group)
        many = {f"m{number}": b"v%d" % number for number in range(2000)}
        follower = group.followers()[0]
        client(follower).set_many(many)
        assert client(group.followers()[1]).get_many(many) == many
        assert follower.seen()["forwarded"] != "0"


def test_values_of_all_sizes_are_forwarded(etcd):
    with Group(etcd, 2, "--cluster", "sizes", "-I", "8m") as group:
        through, leader = client(group.followers()[0]), client(group.leader())
        for size in [0, 1, 1000, 60_000, 70_000, 500_000, 1_048_000, 5_000_000]:
            value = bytes(number * 7 % 251 for number in range(1000)) * (size // 1000 + 1)
            value = value[:size]
            assert through.set(f"s{size}", value)
            assert leader.get(f"s{size}") == value, size
            assert through.get(f"s{size}") == value, size
        with pytest.raises(pymemcache.exceptions.MemcacheServerError):
            through.set("large", b"x" * (9 << 20))
        assert through.get("s1000") is not None
        # The total size of the replies exceeds the output limit of a connection.
        asked = [f"s{size}" for size in (500_000, 1_048_000, 5_000_000)] * 3
        assert sum(map(len, through.get_many(asked).values())) == 6_548_000
        with group.followers()[0].connect() as sock:
            sock.sendall(b"get s1048000\r\n" * 30)
            left = 30 * len(b"VALUE s1048000 0 1048000\r\n\r\nEND\r\n") + 30 * 1_048_000
            while left > 0:
                left -= len(sock.recv(1 << 20))
            sock.sendall(b"mn\r\n")
            assert sock.recv(100) == b"MN\r\n"


def test_other_protocols(etcd):
    with Group(etcd, 2, "--cluster", "protocols", resp=True, http=True, grpc=True) as group:
        follower, leader = group.followers()[0], group.leader()
        for protocol in (2, 3):
            by_redis = redis.Redis(port=follower.resp_port, protocol=protocol)
            assert by_redis.set("r", "1") and by_redis.incr("r") == 2
            assert by_redis.mget("r", "none") == [b"2", None]
            with by_redis.pipeline(transaction=True) as pipe:
                assert pipe.set("t", 1).incr("t").get("t").execute() == [True, 2, b"2"]
        assert client(leader).get("r") == b"2"
        assert httpx.get(f"http://{follower.http_address}/v1/keys/r").content == b"2"
        # A follower refuses to list keys, because it could list only the keys of its own replica.
        answer = httpx.get(f"http://{follower.http_address}/v1/keys")
        assert answer.status_code == 503 and "leader" in answer.text
        assert '"follower"' in httpx.get(f"http://{follower.http_address}/v1/stats/cluster").text


def test_clients_get_the_list_of_all_servers(etcd):
    with Group(etcd, 3, "--cluster", "discovery") as group:
        ports = {f"127.0.0.1|127.0.0.1|{node.port}" for node in group}

        def told(node):
            answer = ask(node, b"config get cluster\r\n", b"\r\nEND\r\n").decode()
            head, version, servers, *_ = answer.replace("\r", "").split("\n")
            assert head.startswith("CONFIG cluster 0 ")
            return int(version), set(servers.split())

        for node in group:
            wait_until(lambda: ports <= told(node)[1], "all servers in the list")
        version, _ = told(node)
        gone = group.followers()[0]
        group.kill(gone)
        rest = group.leader()
        wait_until(lambda: f"127.0.0.1|127.0.0.1|{gone.port}" not in told(rest)[1], "one server less")
        assert told(rest)[0] > version


def test_wrong_options_are_refused(etcd):
    on = ["--replicate-on", "127.0.0.1:0"]
    cases = [
        (["--cluster", "demo"], "--replicate-on"),
        (["--cluster", "a/b", *on], "letters"),
        (["--cluster", "demo", "--node", "", *on], "--node"),
        (["--cluster", "demo", "--etcd", "ftp://x", *on], "http://"),
        (["--cluster", "demo", "--etcd", "https://x", *on], "--etcd-ca"),
        (["--cluster", "demo", "--etcd-ca", "/nowhere", *on], "/nowhere"),
        (["--cluster", "demo", "--follow", "127.0.0.1:1", *on], "--follow"),
        (["--cluster", "demo", "--etcd-cert", "/x", *on], "--etcd-key"),
        (["--etcd", "http://127.0.0.1:1"], "--cluster"),
        (["--ack", "writes"], "--cluster"),
        (["--doubt", "serve"], "--cluster"),
        (["--group", "a"], "--cluster"),
        (["--cluster", "demo", "--replicate-on", "0.0.0.0:0"], "other nodes"),
    ]
    for options, word in cases:
        with pytest.raises(ExitedAtStart) as refused:
            Server(LARDERD, options=options)
        assert word in refused.value.output, options


def test_without_a_leader_nothing_hangs():
    with Server(LARDERD, options=[
        "--cluster", "demo", "--node", "n1", "--etcd", "http://127.0.0.1:1", "--replicate-on", "127.0.0.1:0",
    ]) as node:  # fmt: skip
        for request in (b"get a\r\n", b"set a 0 0 1\r\n1\r\n", b"incr a 1\r\n", b"mg a v\r\n"):
            start_time = time.monotonic()
            assert ask(node, request, b"\r\n") == b"SERVER_ERROR no leader\r\n"
            assert 0.5 < time.monotonic() - start_time < 5
        with node.connect() as sock:
            sock.sendall(b"set large 0 0 900000\r\n" + b"x" * 900_000 + b"\r\nversion\r\n")
            sock.settimeout(10)
            answer = b""
            while answer.count(b"\r\n") < 2:
                answer += sock.recv(1000)
            assert answer.startswith(b"SERVER_ERROR no leader\r\nVERSION "), answer
        assert node.stats("cluster")["role"] == "alone"
        assert ask(node, b"config get cluster\r\n", b"END\r\n").startswith(b"CONFIG cluster 0 ")


def test_disconnected_clients_leave_nothing(etcd):
    with Group(etcd, 2, "--cluster", "leaving") as group:
        leader, follower = group.leader(), group.followers()[0]
        rss = leader.rss()
        for _ in range(30):
            socks = [follower.connect() for _ in range(100)]
            for sock in socks:
                sock.sendall(b"get a\r\nset b 0 0 1\r\n1\r\nincr b 1\r\n")
            for sock in socks:
                answer = b""
                while answer.count(b"\r\n") < 3:
                    answer += sock.recv(1000)
                assert answer == b"END\r\nSTORED\r\n2\r\n"
            # Half of the clients disconnect in the middle of a value.
            for sock in socks[::2]:
                sock.sendall(b"set c 0 0 500000\r\n" + b"x" * 100_000)
            for sock in socks:
                sock.close()
        assert client(follower).get("b") == b"2"
        assert client(follower).get("c") is None
        assert leader.rss() < rss + (48 << 20)
        wait_until(lambda: int(follower.stats()["curr_connections"]) <= 3, "the end of connections")
