"""`--follow`: after a failure of the leader, the follower or the connection, the follower has the items of its leader
again."""

import contextlib
import os
import random
import re
import signal
import socket
import threading
import time

import httpx
import pymemcache
import pytest
import redis

from pace import Pace
from resp_peer import ALL, Peer, push
from replicas import Leader, Relay, ask, is_following, items, keys, wait_for_equality
from server import ExitedAtStart, Server, wait_until

pytestmark = pytest.mark.larder


def follower(leader_or_port, *options, **more):
    """Returns a follower of a leader, or of the server on a port."""
    port = getattr(leader_or_port, "replication_port", leader_or_port)
    return Server(options=["--follow", f"127.0.0.1:{port}", "-v", *options], **more)


def replication(server, name):
    return server.stats("replication")[name]


def fill(server, count, prefix="k", length=20):
    """Stores `count` items."""
    value = b"v" * length
    with server.connect() as sock:
        for start in range(0, count, 1000):
            sock.sendall(
                b"".join(
                    b"set %s%d 7 0 %d noreply\r\n%s\r\n" % (prefix.encode(), n, length, value)
                    for n in range(start, min(start + 1000, count))
                )
            )
        sock.sendall(b"mn\r\n")
        assert sock.recv(100) == b"MN\r\n"


class Writers:
    """Clients that send all kinds of changes to a leader, for a `with` block."""

    def __init__(self, leader, threads=3, keys=200, large=True):
        self.leader, self.keys, self.large = leader, keys, large
        self.end = threading.Event()
        self.requests = 0
        self.slowest = 0.0
        self.pace = Pace()
        self.faults = []
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def _run(self, number):
        draw = random.Random(number)
        try:
            client = pymemcache.Client(("127.0.0.1", self.leader.port), timeout=30)
            while not self.end.is_set():
                start_time = time.monotonic()
                self._request(client, draw, f"w{draw.randrange(self.keys)}")
                self.slowest = max(self.slowest, time.monotonic() - start_time)
                self.requests += 1
        except Exception as fault:
            self.faults.append(fault)

    def _request(self, client, draw, key):
        match draw.randrange(12):
            case 0:
                client.delete(key)
            case 1:
                client.append(key, b"+")
            case 2:
                client.touch(key, 1000)
            case 3 if self.large:
                client.set(key, os.urandom(draw.randrange(70_000, 300_000)))
            case 4:
                client.set(f"n{key}", b"1")
                client.incr(f"n{key}", 5)
            case 5:
                client.raw_command(b"md %s I T100" % key.encode())
            case 6 if draw.randrange(200) == 0:
                client.flush_all()
            case 7:
                client.set(key, b"s", expire=1)
            case _:
                client.set(key, b"%d" % draw.randrange(10**6), expire=draw.choice([0, 5000]), flags=3)

    def __enter__(self):
        self.pace.__enter__()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for thread in self.threads:
            thread.join()
        self.pace.__exit__()
        assert not self.faults and self.requests > 0, self.faults


def test_a_follower_gets_a_full_sync_and_then_changes(engine):
    with Leader(engine=engine) as leader:
        fill(leader, 20_000)
        with Writers(leader), follower(leader, engine=engine) as copy:
            wait_until(lambda: is_following(copy), "the copy")
            wait_until(lambda: int(replication(copy, "states_received")) > 21_000, "changes after the copy")
        with follower(leader) as copy:
            wait_for_equality(leader, copy)


def test_changes_under_load_leave_both_with_the_same_items(tmp_path):
    with Leader(options=["-t", "4"]) as leader, follower(leader) as copy:
        with Writers(leader, threads=6) as writers:
            wait_until(lambda: writers.requests > 5000, "changes")
        wait_for_equality(leader, copy)
        assert replication(leader, "followers") == "1"
        assert replication(copy, "full_syncs_received") == "1"


def test_a_follower_resumes_after_a_broken_connection():
    with Leader() as leader, Relay(leader.replication_port) as relay:
        fill(leader, 5000)
        with follower(relay.port) as copy:
            wait_for_equality(leader, copy)
            with Writers(leader, threads=2, large=False):
                for number in range(2, 7):
                    relay.break_connections()
                    connected = lambda: int(replication(copy, "connections")) >= number
                    wait_until(connected, "a new connection")
                    wait_until(lambda: replication(copy, "link") == "following", "following")
            wait_for_equality(leader, copy)
            assert replication(copy, "full_syncs_received") == "1", "it went on each time"


def test_a_killed_follower_needs_a_full_sync():
    with Leader() as leader, Writers(leader, threads=2):
        fill(leader, 10_000)
        for _ in range(3):
            copy = follower(leader)
            wait_until(lambda: is_following(copy), "the copy")
            copy.process.kill()
            copy.stop()
    # The end of the `with` block checks that the leader shuts down cleanly after its followers have stopped.


def test_a_restarted_leader_is_followed_again(tmp_path):
    """With -e, the leader keeps its items over a restart, and its followers keep them, too."""
    file = tmp_path / "items"
    if not os.path.exists("/dev/shm"):
        pytest.skip("there is no /dev/shm")
    file = f"/dev/shm/larder-test-{os.getpid()}-{random.random()}"
    try:
        leader = Leader(options=["-e", file])
        fill(leader, 5000)
        port = leader.replication_port
        with follower(leader) as copy:
            wait_for_equality(leader, copy)
            leader.process.kill()
            leader.stop()
            wait_until(lambda: replication(copy, "link") == "connecting", "the end of the link")
            assert items(copy, [b"k1"]) != {}, "it serves what it has"
            assert replication(copy, "last_error") != ""
            with Leader(options=["-e", file], listen=f"127.0.0.1:{port}") as leader:
                wait_until(lambda: replication(copy, "full_syncs_received") == "2", "another copy")
                wait_for_equality(leader, copy)
                assert items(copy, [b"k4999"]) != {}
                assert replication(copy, "last_error") == ""
    finally:
        if os.path.exists(file):
            os.unlink(file)


def test_a_follower_becomes_a_leader_by_a_restart():
    file = f"/dev/shm/larder-test-{os.getpid()}-{random.random()}"
    try:
        with Leader() as leader:
            fill(leader, 5000)
            with follower(leader, "-e", file) as copy:
                wait_for_equality(leader, copy)
                before = items(copy, keys(copy))
        with Server(options=["-e", file]) as server:
            assert items(server, list(keys(server))) == before
            assert ask(server, b"set k1 0 0 1\r\n2\r\n", b"\r\n") == b"STORED\r\n"
    finally:
        if os.path.exists(file):
            os.unlink(file)


def test_a_paused_follower_catches_up():
    with Leader() as leader, follower(leader) as copy:
        wait_for_equality(leader, copy)
        with Writers(leader, threads=2, large=False) as writers:
            copy.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: float(replication(leader, "followers_lag")) > 1, "a lag that is seen")
            copy.process.send_signal(signal.SIGCONT)
        assert writers.pace.without_delay(writers.slowest) < 1, "no client waits for the follower"
        wait_for_equality(leader, copy)
        assert float(replication(leader, "followers_lag")) < 1


def test_a_slow_link_causes_a_full_sync_and_delays_no_client():
    """A cache of 64 MiB has journals of 4 MiB in total: 512 KiB for each of eight threads."""
    with Leader(options=["-t", "8"]) as leader, Relay(leader.replication_port) as relay:
        with follower(relay.port) as copy:
            wait_for_equality(leader, copy)
            relay.is_open.clear()
            start_time = time.monotonic()
            for number in range(4):
                fill(leader, 50_000, prefix=f"p{number}/", length=100)
            assert time.monotonic() - start_time < 20
            relay.is_open.set()
            wait_until(lambda: int(replication(copy, "full_syncs_received")) >= 2, "another copy")
            wait_for_equality(leader, copy)


def test_a_follower_can_have_followers():
    with Leader() as first:
        fill(first, 3000)
        port = first.replication_port
        options = ["--follow", f"127.0.0.1:{port}"]
        with Leader(options=options) as second, follower(second) as third:
            with Writers(first, threads=2) as writers:
                wait_until(lambda: writers.requests > 1000, "changes")
            wait_for_equality(first, second)
            wait_for_equality(first, third)


def test_flushes_and_delayed_flushes_are_replicated():
    with Leader() as leader, follower(leader) as copy:
        for flush in (b"flush_all\r\n", b"flush_all 1\r\n"):
            fill(leader, 1000)
            wait_for_equality(leader, copy)
            ask(leader, flush, b"OK\r\n")
            wait_until(lambda: items(copy, [b"k1", b"k999"]) == {}, "the flush")
        wait_for_equality(leader, copy)


def test_values_of_all_lengths_and_expiries():
    with Leader(options=["-I", "4m"]) as leader, follower(leader, "-I", "4m") as copy:
        client = pymemcache.Client(("127.0.0.1", leader.port))
        for length in [0, 1, 100, 65_535, 65_536, 65_537, 262_144, 1 << 20, 3 << 20]:
            client.set(f"length/{length}", os.urandom(length), expire=1000 + length)
        client.raw_command(b"ms c3Bh44KP 2 b T90 F5\r\nab", b"\r\n")
        client.raw_command(b"md length/100 I T50")
        wait_for_equality(leader, copy)
        for length in [0, 1, 1 << 20]:
            lines = [ask(of, b"mg length/%d t\r\n" % length, b"\r\n") for of in (leader, copy)]
            left = [int(re.fullmatch(rb"HD t(\d+)\r\n", line)[1]) for line in lines]
            assert abs(left[0] - left[1]) <= 1, "expiries differ by less than a second and the lag"
        stale = ask(copy, b"mg length/100 s\r\n", b"\r\n")
        assert b" X" in stale, "an invalidated item is stale on both"


def test_items_that_do_not_fit_are_misses():
    with Leader(options=["-I", "2m"]) as leader, follower(leader) as copy:
        client = pymemcache.Client(("127.0.0.1", leader.port))
        client.set("k", b"small")
        wait_until(lambda: items(copy, [b"k"]) != {}, "the item")
        client.set("k", b"x" * (3 << 19))
        wait_until(lambda: items(copy, [b"k"]) == {}, "the removal of what it replaced")
        assert int(replication(copy, "states_refused")) == 1
        client.set("k", b"small")
        wait_until(lambda: items(copy, [b"k"]) != {}, "the item")


def test_a_follower_with_less_memory_has_some_items():
    with Leader(options=["-m", "64"]) as leader:
        fill(leader, 30_000, length=1000)
        with follower(leader, "-m", "8") as copy:
            wait_until(lambda: is_following(copy), "the copy")
            stats = copy.stats()
            assert int(stats["evictions"]) > 0 and int(stats["curr_items"]) > 3000
            client = pymemcache.Client(("127.0.0.1", leader.port))
            client.set("last", b"x")
            wait_until(lambda: items(copy, [b"last"]) != {}, "the last item")


def test_clients_of_a_follower_can_only_read():
    with Leader() as leader:
        pymemcache.Client(("127.0.0.1", leader.port)).set("k", b"1")
        with follower(leader, resp=True, http=True) as copy:
            wait_for_equality(leader, copy)
            client = pymemcache.Client(("127.0.0.1", copy.port), default_noreply=False)
            assert client.get("k") == b"1"
            for change in (
                lambda: client.set("k", b"2"),
                lambda: client.delete("k"),
                lambda: client.incr("k", 1),
                lambda: client.touch("k", 1),
                lambda: client.flush_all(),
            ):
                with pytest.raises(pymemcache.exceptions.MemcacheServerError, match="its leader"):
                    change()
                assert client.get("k") == b"1"
            by_redis = redis.Redis(port=copy.resp_port)
            assert by_redis.get("k") == b"1"
            with pytest.raises(redis.exceptions.ReadOnlyError):
                by_redis.set("k", "2")
            keys_path = f"http://{copy.http_address}/v1/keys/k"
            assert httpx.get(keys_path).content == b"1"
            answer = httpx.put(keys_path, content=b"2")
            assert answer.status_code == 403 and "leader" in answer.json()["detail"]
            assert client.get("k") == b"1"


def test_clients_of_a_follower_learn_of_changes():
    """`CLIENT TRACKING` on a follower."""
    with contextlib.ExitStack() as stack:
        leader = Leader()
        stack.callback(leader.stop)
        port = leader.replication_port
        fill(leader, 10)
        with follower(leader, resp=True) as replica:
            wait_for_equality(leader, replica)
            reader = Peer(replica.resp_port, resp3=True)
            assert reader.ask("CLIENT TRACKING ON", "GET k1", "GET k2", "GET new").startswith(b"+OK")
            received = b""

            def has(message):
                nonlocal received
                received += reader.ask()
                return message in received

            for request, message in [
                (b"set k1 0 0 1\r\n2\r\n", push("k1")),
                (b"delete k2\r\n", push("k2")),
                (b"set new 0 0 1\r\n2\r\n", push("new")),
            ]:
                ask(leader, request, b"\r\n")
                wait_until(lambda: has(message), "the message")
            assert received == push("k1") + push("k2") + push("new")
            ask(leader, b"flush_all\r\n", b"\r\n")
            wait_until(lambda: has(ALL), "the message about the flush")
            ask(leader, b"set k1 0 0 1\r\n3\r\n", b"\r\n")
            wait_until(lambda: b"$1\r\n3\r\n" in reader.ask("GET k1"), "the item")
            received = reader.ask("GET k1")
            leader.stop()
            with Leader(listen=f"127.0.0.1:{port}"):
                wait_until(lambda: has(push("k1")) or ALL in received, "the message about the full sync")
            reader.close()


def test_followers_without_the_secret_are_refused(tmp_path):
    files = {}
    for name in ("right", "wrong"):
        files[name] = tmp_path / name
        files[name].write_text(f"the {name} secret of this cluster\n")
    secret = ["--cluster-secret", str(files["right"])]
    with Leader(options=secret) as leader:
        fill(leader, 100)
        with follower(leader, *secret) as copy:
            wait_for_equality(leader, copy)
        with follower(leader) as copy:
            wait_until(lambda: "--cluster-secret" in replication(copy, "last_error"), "a refusal")
        with follower(leader, "--cluster-secret", str(files["wrong"])) as copy:
            wait_until(lambda: "secret" in replication(copy, "last_error"), "a refusal")
            assert items(copy, [b"k1"]) == {}
            outputs = copy.output() + leader.output()
        assert "secret of this cluster" not in outputs
    with Leader() as leader, follower(leader, *secret) as copy:
        wait_until(lambda: "has no cluster secret" in replication(copy, "last_error"), "a refusal")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicate-on", "0.0.0.0:0"], "--cluster-secret"),
        (["--replicate-on", "[::]:0"], "--cluster-secret"),
        (["--follow", "10.0.0.1:11311"], "--cluster-secret"),
        (["--follow", "cache.example:11311"], "--cluster-secret"),
        (["--follow", "localhost"], "HOST:PORT"),
        (["--replicate-on", "127.0.0.1:0", "-o", "ext_path=/tmp/none:64m"], "ext_path"),
        (["--cluster-secret", "/dev/null"], "--replicate-on"),
        (["--replicate-on", "127.0.0.1:0", "--cluster-secret", "/dev/null"], "at least 16 bytes"),
        (["--replicate-on", "127.0.0.1:0", "--journal-size", "40"], "--journal-size"),
        (["--journal-size", "4"], "--replicate-on"),
    ],
)
def test_invalid_options_are_refused_at_start(options, words):
    with pytest.raises(ExitedAtStart) as refused:
        Server(options=options)
    assert words in refused.value.output


def test_hostile_peers_do_not_block_followers():
    draw = random.Random(1)
    with Leader() as leader:
        fill(leader, 1000)
        port = leader.replication_port
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                head = draw.choice([b"", b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n"])
                try:
                    sock.sendall(head + draw.randbytes(draw.randrange(1, 3000)))
                except OSError:
                    pass
        with follower(leader) as copy:
            wait_for_equality(leader, copy)
            assert leader.rss() < 64 << 20
            assert ask(leader, b"get k1\r\n", b"END\r\n").startswith(b"VALUE k1 ")
        for sock in silent:
            sock.close()


def test_memory_stays_within_the_limit():
    with Leader(options=["-m", "64"]) as leader:
        assert int(replication(leader, "journal_bytes")) == 4 << 20
        assert int(leader.stats()["limit_maxbytes"]) == 64 << 20
        with follower(leader, "-m", "64") as copy, Writers(leader, threads=2):
            for number in range(4):
                fill(leader, 30_000, prefix=f"p{number}/", length=1000)
            wait_until(lambda: is_following(copy), "the copy")
            for server in (leader, copy):
                assert server.rss_peak() < (64 + 32) << 20, f"{server.rss_peak() >> 20} MiB"
