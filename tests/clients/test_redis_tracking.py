"""`CLIENT TRACKING`: RESP clients that cache items receive messages about changed items."""

import contextlib
import random
import select
import socket
import threading
import time

import httpx
import pytest
import redis
from redis.cache import CacheConfig

from grpc_client import Cache
from resp_peer import ALL, Peer, push
from server import RUNTIMES, wait_until
from tiers import long

pytestmark = pytest.mark.larder


@pytest.fixture(autouse=True)
def close_connections():
    yield
    while Peer.opened:
        Peer.opened.pop().close()


@pytest.fixture(scope="module", params=[None, *map(long, RUNTIMES[1:])])
def server(request, start):
    with start("-t", "2", *(["--runtime", request.param] if request.param else []), resp=True, http=True, grpc=True) as server:
        yield server


def of_keys(reader, writer, other):
    """Yields replies and messages about the keys that a connection has read."""
    yield reader.ask("CLIENT TRACKING ON", "GET k", "MGET x y", "EXISTS e", "TTL t", "STRLEN s", "GETRANGE r 0 1")
    yield writer.ask("SET k 1", "MSET x 1 y 2 z 3", "SET e 1", "SET t 1", "APPEND s x", "SETRANGE r 2 x")
    yield reader.ask()
    yield writer.ask("SET k 2"), reader.ask()
    yield reader.ask("GET k", "SET k 3", "GET k")
    yield reader.ask("GET k"), writer.ask("DEL k"), reader.ask()
    yield reader.ask("GET t"), writer.ask("EXPIRE t 100"), reader.ask(), writer.ask("PERSIST t"), reader.ask()
    yield reader.ask("GET n"), writer.ask("DEL n", "GETDEL n", "EXPIRE n 5"), reader.ask()
    yield reader.ask("MULTI", "GET m", "INCR m", "GET m", "EXEC"), writer.ask("INCR m"), reader.ask()
    yield reader.ask("GET x"), writer.ask("RENAME x y"), reader.ask(), reader.ask("GET y"), writer.ask("COPY e y REPLACE")
    yield reader.ask("GET f"), writer.ask("FLUSHALL"), reader.ask(), writer.ask("SET f 1"), reader.ask()
    yield reader.ask("GET k", "CLIENT TRACKING OFF"), writer.ask("SET k 1"), reader.ask("CLIENT TRACKINGINFO")


def of_chosen_requests(reader, writer, other):
    """Yields replies and messages with `OPTIN`, `OPTOUT`, `CLIENT CACHING` and `NOLOOP`."""
    yield reader.ask("CLIENT TRACKING ON OPTIN", "GET a", "CLIENT CACHING YES", "GET b", "GET c")
    yield writer.ask("MSET a 1 b 1 c 1"), reader.ask()
    yield reader.ask("CLIENT CACHING YES", "MULTI", "PTTL a", "GET b", "EXEC", "GET c")
    yield writer.ask("SET a 1"), reader.ask(), writer.ask("MSET b 1 c 1"), reader.ask()
    yield reader.ask("CLIENT CACHING YES", "CLIENT GETNAME", "CLIENT NO-EVICT on", "GET d", "GET e")
    yield writer.ask("MSET d 1 e 1"), reader.ask()
    yield reader.ask("CLIENT CACHING YES", "CLIENT TRACKINGINFO", "CLIENT CACHING NO", "CLIENT TRACKING ON OPTOUT")
    yield reader.ask("CLIENT TRACKING OFF", "CLIENT TRACKING ON OPTOUT NOLOOP", "GET a", "CLIENT CACHING NO", "GET b")
    yield reader.ask("SET a 2"), writer.ask("MSET a 1 b 1"), reader.ask()
    yield reader.ask("GET a"), writer.ask("MSET a 1 b 1"), reader.ask("CLIENT TRACKINGINFO", "CLIENT CACHING YES")
    yield reader.ask("RESET"), reader.ask("CLIENT TRACKINGINFO", "CLIENT GETREDIR", "CLIENT CACHING YES")


def of_prefixes(reader, writer, other):
    """Yields replies and messages with `BCAST`."""
    yield reader.ask("CLIENT TRACKING ON BCAST PREFIX a: PREFIX b:", "CLIENT TRACKINGINFO")
    yield writer.ask("SET a:1 1"), reader.ask(), writer.ask("SET b 1", "SET c 1"), reader.ask(), writer.ask("SET b:2 1")
    yield reader.ask("CLIENT TRACKING ON BCAST PREFIX a:x", "CLIENT TRACKING ON BCAST PREFIX c", "CLIENT TRACKINGINFO")
    yield writer.ask("SET c 1"), reader.ask()
    yield reader.ask("CLIENT TRACKING ON BCAST", "CLIENT TRACKING ON BCAST"), writer.ask("SET any 1"), reader.ask()
    yield reader.ask("CLIENT TRACKING OFF", "CLIENT TRACKING ON BCAST"), writer.ask("SET any 1")
    yield reader.ask(), writer.ask("FLUSHALL"), reader.ask()


def of_redirected_messages(reader, writer, other):
    """Yields the replies and messages of a client that redirects its messages to a RESP2 connection."""
    target = f"CLIENT TRACKING ON REDIRECT {other.number}"
    shown = lambda reply: reply.replace(str(other.number).encode(), b"N")
    yield other.ask("SUBSCRIBE __redis__:invalidate"), reader.ask(target), shown(reader.ask("CLIENT GETREDIR"))
    yield reader.ask("GET a"), writer.ask("SET a 1"), reader.ask(), other.ask()
    yield other.ask("GET a", "SET a 1", "ping x"), other.ask("UNSUBSCRIBE", "GET a"), other.ask("UNSUBSCRIBE")
    yield reader.ask("GET a"), writer.ask("SET a 1"), reader.ask(), other.ask()
    other.close()


def of_messages_to_resp3(reader, writer, other):
    """Yields the same replies and messages as `of_redirected_messages`, but redirects the messages to a RESP3
    connection, which need not subscribe."""
    other.ask("HELLO 3", "CLIENT ID")
    yield reader.ask(f"CLIENT TRACKING ON REDIRECT {other.number}", "GET a"), writer.ask("SET a 1"), reader.ask(), other.ask()
    yield reader.ask("GET a"), other.ask("CLIENT TRACKING ON", "CLIENT TRACKING OFF"), writer.ask("SET a 1"), other.ask()


def of_errors(reader, writer, other):
    lines = """CLIENT TRACKING|CLIENT TRACKING maybe|CLIENT TRACKING ON PREFIX a|CLIENT TRACKING ON OPTIN OPTOUT|
        CLIENT TRACKING ON BCAST PREFIX aa PREFIX a|CLIENT TRACKING ON OPTIN BCAST|CLIENT TRACKING ON REDIRECT 999999|
        CLIENT TRACKING ON REDIRECT x|CLIENT TRACKING ON REDIRECT 0|CLIENT TRACKING ON foo|
        CLIENT TRACKING ON REDIRECT|CLIENT TRACKING ON PREFIX|CLIENT CACHING maybe|CLIENT CACHING YES|CLIENT CACHING|
        CLIENT TRACKINGINFO x|CLIENT GETREDIR x|SUBSCRIBE|CLIENT TRACKING ON BCAST PREFIX a PREFIX a"""
    for line in lines.split("|"):
        yield reader.ask(line.strip())
    yield reader.ask(f"CLIENT TRACKING ON REDIRECT {other.number} REDIRECT {other.number}")
    yield reader.ask("CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST", "CLIENT CACHING NO", "CLIENT TRACKINGINFO")
    yield reader.ask("CLIENT TRACKING OFF", "CLIENT TRACKING ON OPTOUT", "CLIENT CACHING maybe", "CLIENT CACHING YES")


def transcript(port, scenario, resp3, inline):
    peers = [Peer(port, resp3, inline), Peer(port, False, inline), Peer(port, False, inline)]
    peers[1].ask("FLUSHALL")
    return list(scenario(*peers))


@pytest.mark.parametrize("inline", [False, True], ids=["array", "inline"])
@pytest.mark.parametrize("resp3", [True, False], ids=["resp3", "resp2"])
@pytest.mark.parametrize("scenario", [of_keys, of_chosen_requests, of_prefixes, of_redirected_messages, of_messages_to_resp3, of_errors])
def test_messages_equal_those_of_redis_server(server, reference, scenario, resp3, inline):
    expected = transcript(reference, scenario, resp3, inline)
    for step, (ours, theirs) in enumerate(zip(transcript(server.resp_port, scenario, resp3, inline), expected)):
        assert ours == theirs, f"step {step}"


def test_idle_connections_get_messages(server):
    """A connection receives messages while it waits, even if its last request was in the same batch as `CLIENT
    TRACKING`."""
    writer = Peer(server.resp_port)
    for lines in [("CLIENT TRACKING ON BCAST",), ("CLIENT TRACKING ON", "GET k"), ("GET j", "CLIENT TRACKING ON OPTOUT", "GET k")]:
        reader = Peer(server.resp_port, resp3=True)
        reader.send(*lines)
        wait_until(lambda: server.stats()["tracking_connections"] == "1", "tracking")
        if len(lines) > 1:
            wait_until(lambda: server.stats()["tracking_keys"] == "1", "the key")
        for _ in range(3 if "BCAST" in lines[0] else 1):
            writer.ask("SET k 1")
            reader.read_until(push("k"))
        reader.close()
        wait_until(lambda: server.stats()["tracking_connections"] == "0", "the end of the connection")
    target, reader = Peer(server.resp_port), Peer(server.resp_port)
    target.send("SUBSCRIBE __redis__:invalidate")
    target.read_until(b"invalidate\r\n:1\r\n")
    reader.ask(f"CLIENT TRACKING ON BCAST REDIRECT {target.number}")
    # These keys cause more messages than the server writes at once.
    keys = [f"{number:04}" + "x" * 40 for number in range(2000)]
    reader.ask("MSET " + " ".join(f"{key} 1" for key in keys))
    named = b""
    while named.count(b"x" * 40) < len(keys):
        named += target.socket.recv(1 << 16)
    writer.ask("SET last 1")
    target.read_until(b"$4\r\nlast\r\n")


def test_a_closed_target_is_noticed_whatever_its_protocol(server):
    before = server.rss()
    reader = Peer(server.resp_port, resp3=True)
    for _ in range(30):
        with server.connect() as target:
            target.sendall(b"mn\r\n")
            assert target.recv(10) == b"MN\r\n"
            number = next(line.split(":")[0] for line in conns(server) if line.endswith(f":{target.getsockname()[1]}"))
            reader.ask("CLIENT TRACKING OFF", f"CLIENT TRACKING ON BCAST REDIRECT {number}")
            reader.ask("MSET " + " ".join(f"{key}-{number} 1" for key in range(2000)))
        wait_until(lambda: not any(line.startswith(f"{number}:") for line in conns(server)), "the end of the target")
        assert b"tracking-redir-broken\r\n:%s\r\n" % number.encode() in reader.ask("SET k 1", "SET k 2")
    assert server.rss() - before < 20 << 20


def conns(server):
    """Returns the numbers and addresses of connections."""
    return [f"{name.split(':')[0]}:{value}" for name, value in server.stats("conns").items() if name.endswith(":addr")]


def test_hostile_clients_leave_memory_to_others(server):
    hostile, other = Peer(server.resp_port, resp3=True), Peer(server.resp_port)
    hostile.ask("CLIENT TRACKING ON", *(f"EXISTS {number}{'x' * 900_000}" for number in range(20)))
    assert int(server.stats()["tracking_bytes"]) < 1 << 20, "no item can have such a key"
    assert b"128 prefixes" in hostile.ask(
        "CLIENT TRACKING OFF", "CLIENT TRACKING ON BCAST " + " ".join(f"PREFIX {number:06}" for number in range(50_000))
    )
    targets = [Peer(server.resp_port, resp3=True) for _ in range(60)]
    for target in targets:
        target.ask("CLIENT TRACKING ON BCAST")
        target.socket.settimeout(1)
    padding = "y" * 50
    for part in range(5):
        other.ask("MSET " + " ".join(f"{part}-{number}{padding} 1" for number in range(2000)))
    assert int(server.stats()["tracking_bytes"]) <= 5 << 20
    assert other.ask(f"SET k {'v' * 200_000}", "STRLEN k") == b"+OK\r\n:200000\r\n"


def test_a_client_learns_that_its_messages_have_no_receiver(server):
    reader, writer, target = Peer(server.resp_port, resp3=True), Peer(server.resp_port), Peer(server.resp_port)
    target.ask("SUBSCRIBE __redis__:invalidate")
    assert reader.ask(f"CLIENT TRACKING ON REDIRECT {target.number}", "GET k").startswith(b"+OK")
    target.close()

    def is_broken():
        writer.ask("SET k 1")
        return b"tracking-redir-broken\r\n:%d\r\n" % target.number in reader.ask("GET k")

    wait_until(is_broken, "the message about the closed connection")
    assert b"broken_redirect" in reader.ask("CLIENT TRACKINGINFO")


def test_changes_through_every_interface_are_reported(server):
    reader = Peer(server.resp_port, resp3=True)
    reader.ask("CLIENT TRACKING ON")

    def reported(change):
        reader.ask("GET k")
        change()
        return reader.ask()

    with server.connect() as memcached, memcached.makefile("rb") as replies:

        def send(line, expected):
            memcached.sendall(line + b"\r\n")
            assert replies.readline() == expected + b"\r\n", line

        for line, reply in [
            (b"set k 0 0 1\r\n1", b"STORED"),
            (b"incr k 1", b"2"),
            (b"append k 0 0 1\r\nx", b"STORED"),
            (b"touch k 100", b"TOUCHED"),
            (b"ms k 1 T50\r\nv", b"HD"),
            (b"md k I", b"HD"),
            (b"delete k", b"DELETED"),
            (b"add k 0 0 1 noreply\r\n1\r\nmn", b"MN"),
        ]:
            assert reported(lambda: send(line, reply)) == push("k"), line
        for line, reply in [(b"mg k t", b"HD t-1"), (b"mn", b"MN"), (b"delete missing", b"NOT_FOUND")]:
            assert reported(lambda: send(line, reply)) == b"", line
        assert ALL in reported(lambda: send(b"flush_all", b"OK"))
        assert ALL in reported(lambda: (send(b"ms k 1 Gtag\r\nv", b"HD"), reader.ask(), send(b"mt tag", b"HD")))
    key = f"http://{server.http_address}/v1/keys/k"
    with httpx.Client(trust_env=False) as web:
        assert reported(lambda: web.put(key, content=b"2")) == push("k")
        assert reported(lambda: web.get(key)) == b""
        assert reported(lambda: web.delete(key)) == push("k")
    cache = Cache(server.grpc_address)
    assert reported(lambda: cache.Set(key=b"k", value=b"1")) == push("k")
    assert reported(lambda: cache.Delete(key=b"k")) == push("k")


def test_a_delayed_flush_is_reported_when_it_takes_effect(server):
    reader = Peer(server.resp_port, resp3=True)
    reader.ask("CLIENT TRACKING ON")
    with server.connect() as memcached:
        memcached.sendall(b"flush_all 1\r\n")
        assert memcached.recv(10) == b"OK\r\n"
        assert reader.ask() == b""
        wait_until(lambda: ALL in reader.ask("GET k"), "the message about the flush")


@pytest.mark.parametrize("kind", ["moka", "dashmap"])
def test_other_engines_report_expired_items(start, kind):
    with start(engine=kind, resp=True) as server:
        reader, other = Peer(server.resp_port, resp3=True), Peer(server.resp_port)
        other.ask("SET k 1 PX 1100")
        reader.ask("CLIENT TRACKING ON", "GET k")
        wait_until(lambda: other.ask("GET k") == b"$-1\r\n", "the expiry")
        wait_until(lambda: push("k") in reader.ask(), "the message")


def test_expiry_and_eviction_are_reported(start):
    with start("-m", "8", resp=True) as server:
        reader, writer = Peer(server.resp_port, resp3=True), Peer(server.resp_port)
        keys = [f"cold{number}" for number in range(300)]
        writer.ask("SET short 1 PX 1100", *(f"SET {key} {'x' * 1000}" for key in keys))
        reader.ask("CLIENT TRACKING ON", "GET short", *(f"EXISTS {key}" for key in keys))
        messages = b""

        def has_message():
            nonlocal messages
            messages += reader.ask()
            return push("short") in messages

        wait_until(has_message, "the message about the expired item")
        with server.connect() as memcached:
            for number in range(60_000):
                memcached.sendall(b"set fill%d 0 0 1000 noreply\r\n%s\r\n" % (number, bytes(1000)))
            memcached.sendall(b"mn\r\n")
            assert memcached.recv(10) == b"MN\r\n"
        messages += reader.ask()
        evicted = {key for key in keys if writer.ask(f"EXISTS {key}") == b":0\r\n"}
        assert evicted and {key for key in keys if push(key) in messages} == evicted


def test_a_client_that_reads_nothing_gets_one_message_about_all_items(server):
    reader, writer = Peer(server.resp_port, resp3=True), Peer(server.resp_port)
    reader.ask("CLIENT TRACKING ON BCAST")
    before = server.rss()
    # The client does not read, so the messages first fill the socket's buffers, then the server's output buffer, and
    # then the inbox of the connection.
    value = "x" * 200
    for part in range(60):
        writer.ask(*(f"SET {value}{part}-{number} 1" for number in range(1000)))
    assert server.rss() - before < 60 * 1000 * 1000 // 2, "memory for the messages is bounded"
    messages = reader.ask()
    assert ALL in messages
    assert len(messages) < 60 * 1000 * 200, "not every key has a message"
    writer.ask("SET k 1")
    assert reader.ask() == push("k")


def test_the_table_of_keys_is_bounded(start):
    """If a client has read too many keys, it receives messages about the keys that the table drops."""
    with start("-m", "64", resp=True) as server:
        reader, writer = Peer(server.resp_port, resp3=True), Peer(server.resp_port)
        reader.ask("CLIENT TRACKING ON")
        read, reported = 0, 0
        while read < 200_000:
            reported += reader.ask(*(f"GET key{number}" for number in range(read, read + 2000))).count(b"invalidate")
            read += 2000
        known = int(server.stats()["tracking_keys"])
        assert 5_000 < known < 100_000
        assert known + reported == read
        assert writer.ask("FLUSHALL") and reader.ask() == ALL and server.stats()["tracking_keys"] == "0"


def test_a_closed_connection_leaves_nothing(server):
    wait_until(lambda: server.stats()["tracking_connections"] == "0", "the end of earlier tests' connections")
    peers = [Peer(server.resp_port, resp3=True) for _ in range(20)]
    for number, peer in enumerate(peers):
        peer.ask("CLIENT TRACKING ON" + (" BCAST PREFIX p" if number % 2 else ""), "GET k", "GET j")
    during = server.stats()
    assert (during["tracking_connections"], during["tracking_prefixes"]) == ("20", "10")
    for peer in peers:
        peer.close()
    wait_until(lambda: server.stats()["tracking_connections"] == "0", "the end of the connections")
    assert (server.stats()["tracking_prefixes"], server.stats()["tracking_keys"]) == ("0", "0")


def test_redis_py_keeps_a_near_cache(server):
    with (
        redis.Redis(port=server.resp_port, protocol=3, cache_config=CacheConfig(), socket_timeout=60) as near,
        redis.Redis(port=server.resp_port, socket_timeout=60) as other,
    ):
        other.mset({"a": "1", "b": "2"})
        assert (near.get("a"), near.mget("a", "b")) == (b"1", [b"1", b"2"])
        looked_up = lambda: int(server.stats()["get_hits"])
        before = looked_up()
        assert [near.get("a") for _ in range(50)] == [b"1"] * 50 and looked_up() == before, "from the near cache"
        other.set("a", "3")
        wait_until(lambda: near.get("a") == b"3", "the new value")
        assert near.mget("a", "b") == [b"3", b"2"]
        other.flushall()
        wait_until(lambda: near.get("a") is None, "the flush")


class NearCache(threading.Thread):
    """A client that reads keys at random and caches the items. When a message names a key, the client drops its copy of
    the item."""

    def __init__(self, port, keys, seed, options):
        super().__init__()
        self.peer = Peer(port, resp3=True)
        assert self.peer.ask(f"CLIENT TRACKING ON {options}") == b"+OK\r\n"
        self.keys, self.random, self.copies, self.reads = keys, random.Random(seed), {}, 0
        self.end = threading.Event()

    def run(self):
        while not self.end.is_set():
            wanted = self.random.sample(self.keys, 4)
            self.read(self.peer.ask(*(f"GET {key}" for key in wanted)), wanted)
            self.reads += len(wanted)

    def read(self, received, wanted):
        """Applies replies and messages in the order of their arrival."""
        parts, wanted = iter(received.split(b"\r\n")[:-1]), iter(wanted)
        for part in parts:
            if part[:1] == b">":
                assert [next(parts), next(parts)] == [b"$10", b"invalidate"]
                if (head := next(parts)) == b"_":
                    self.copies.clear()
                else:
                    for _ in range(int(head[1:])):
                        next(parts)
                        self.copies.pop(next(parts).decode(), None)
            else:
                self.copies[next(wanted)] = next(parts) if part[:1] == b"$" else None


@pytest.mark.parametrize("options", ["", "NOLOOP", "BCAST"])
def test_copies_equal_the_items_in_the_end(server, options):
    """Eight clients change a few keys while eight other clients cache them. In the end, no cached copy is stale."""
    keys = [f"shared{number}" for number in range(12)]
    near = [NearCache(server.resp_port, keys, seed, options) for seed in range(8)]
    pace = random.Random(99)
    for client in near:
        client.start()

    def write(seed):
        choice, writer = random.Random(seed), Peer(server.resp_port)
        for round in range(150):
            key = choice.choice(keys)
            writer.ask(choice.choice([f"SET {key} {seed}-{round}", f"DEL {key}", f"APPEND {key} x", f"SET {key} 1 PX 1"]))

    writers = [threading.Thread(target=write, args=(pace.random(),)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for client in near:
        client.end.set()
        client.join()
        client.read(client.peer.ask(), [])
    reader = Peer(server.resp_port)
    items = {}
    for key in keys:
        reply = reader.ask(f"GET {key}").split(b"\r\n")
        items[key] = reply[1] if reply[0] != b"$-1" else None
    for client in near:
        # A client may still have a copy of the value `1` after its expiry. This is correct, because clients can read
        # the expiry of an item.
        stale = {key: copy for key, copy in client.copies.items() if copy not in (items[key], b"1")}
        assert not stale, f"{stale}, but {items}"
    assert sum(client.reads for client in near) > 500


def test_subscribers_are_not_idle(start):
    """The server closes idle connections, except those of subscribers."""
    with start("-o", "idle_timeout=1", resp=True) as server:
        subscriber, silent = Peer(server.resp_port), Peer(server.resp_port, resp3=True)
        subscriber.ask("SUBSCRIBE __redis__:invalidate")
        assert silent.socket.recv(100) == b""
        writer = Peer(server.resp_port)
        writer.ask(f"CLIENT TRACKING ON BCAST REDIRECT {subscriber.number}", "SET k 1")
        subscriber.read_until(b"$1\r\nk\r\n")


def test_a_connection_beyond_the_limit_gets_an_error(start):
    with start("-c", "3", resp=True) as server, contextlib.ExitStack() as stack:
        answer, deadline = b"", time.monotonic() + 60
        while not answer and time.monotonic() < deadline:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.resp_port), timeout=60))
            # The server sends nothing to a connection that is within the limit.
            if select.select([sock], [], [], 0.2)[0]:
                answer = sock.makefile("rb").read()
        assert answer == b"-ERR max number of clients reached\r\n"
