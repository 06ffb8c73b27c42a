"""After SIGTERM, SIGINT, SIGUSR1 and SIGKILL, the next server has all items, and no deleted, flushed or expired item
reappears."""

import time

import pytest

from contents import ROOMY, Contents, client
from items import Snapshot, look_up
from region import ENDS, assert_warm, end, state, wait_past
from server import wait_until
from tiers import long

# The default tier tests one signal that the server handles, and SIGKILL. The long tier tests the other signals.
NAMES = [name if name in ("SIGTERM", "SIGKILL") else long(name) for name in ENDS]
pytestmark = [pytest.mark.larder, pytest.mark.parametrize("name", NAMES)]

# Longer than a server needs to start on a busy machine, in seconds.
DELAY_SECS = 4


def curr_items(server):
    return int(server.stats()["curr_items"])


def ask(server, line):
    """Sends one line on a new connection. Returns the reply's first line."""
    with server.connect() as sock, sock.makefile("rb") as replies:
        sock.sendall(line + b"\r\n")
        return replies.readline().rstrip()


def shown(server, line):
    """Returns the flags of the reply to a meta command."""
    return set(ask(server, line).split()[1:])


def test_items_of_all_kinds_are_kept(region, name):
    server = region.start(*ROOMY)
    assert state(server) == "cold"
    contents = Contents(server)
    contents.check(server)
    server = region.restart(server, name, *ROOMY)
    assert curr_items(server) == contents.live()
    contents.check(server)
    with client(server) as other:
        assert other.get_many(["plain-230", "deleted-230", "expired-1"]) == {
            "plain-230": contents.items["plain-230"][0]
        }
        # Checks that each item can be deleted.
        for key, expected in contents.items.items():
            assert other.delete(key) == (expected is not None), key
    wait_until(lambda: curr_items(server) == 0, "counting deletes")


def test_the_time_of_the_start_is_shown(region, name):
    server = region.start()
    assert float(server.stats()["restart_ms"]) >= 0
    server = region.restart(server, name)
    assert 0 < float(server.stats()["restart_ms"]) < 10_000


def test_the_file_is_the_owners(region, name):
    server = region.start()
    assert region.file.stat().st_mode & 0o777 == 0o600
    server = region.restart(server, name)
    assert region.file.stat().st_mode & 0o777 == 0o600


def test_cas_values_are_not_used_again(region, name):
    server = region.start()
    with client(server) as before:
        for n in range(1000):
            before.set(f"old-{n}", b"1")
        highest = max(unique for _, unique in before.gets_many([f"old-{n}" for n in range(1000)]).values())
        _, token = before.gets("old-1")
        _, stale = before.gets("old-2")
        before.set("old-2", b"2")
    server = region.restart(server, name)
    with client(server) as after:
        for n in range(1000):
            after.set(f"new-{n}", b"1")
        uniques = [unique for _, unique in after.gets_many([f"new-{n}" for n in range(1000)]).values()]
        assert len(set(uniques)) == 1000
        assert min(map(int, uniques)) > int(highest)
        assert after.cas("old-2", b"3", stale) is False
        assert after.cas("old-1", b"3", token) is True


def test_a_client_may_choose_the_highest_cas(region, name):
    """With meta flag E, a client chooses an item's CAS."""
    server = region.start()
    for number, chosen in enumerate([2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]):
        assert ask(server, b"ms chosen-%d 1 c E%d\r\n1" % (number, chosen)) == b"HD c%d" % chosen
        before = Snapshot(server, [f"chosen-{number}"])
        server = region.restart(server, name)
        before.compare(server)
        drawn = [ask(server, b"ms own-%d 1 c\r\n1" % n) for n in range(100)]
        assert len(set(drawn)) == 100 and b"HD c0" not in drawn


def test_meta_states_are_kept(region, name):
    """Tests stale items, recache leases, the fetched state, and binary keys."""
    server = region.start()
    assert ask(server, b"ms stale 5 T0\r\nvalue") == b"HD"
    assert ask(server, b"md stale I T1000") == b"HD"
    assert ask(server, b"ms given 5 T0\r\nvalue") == b"HD"
    assert ask(server, b"md given I T1000") == b"HD"
    assert shown(server, b"mg given s") == {b"s5", b"X", b"W"}
    assert ask(server, b"ms fetched 5 T0\r\nvalue") == b"HD"
    assert ask(server, b"ms unfetched 5 T0\r\nvalue") == b"HD"
    assert ask(server, b"mg fetched s") == b"HD s5"
    assert ask(server, b"mg vivified s N1000") == b"HD s0 W"
    assert ask(server, b"ms AAEC/f7/ 5 b\r\nvalue") == b"HD"
    longest = b"k" * 250
    assert ask(server, b"ms %s 5\r\nvalue" % longest) == b"HD"
    server = region.restart(server, name)
    assert ask(server, b"mg fetched h") == b"HD h1"
    assert ask(server, b"mg unfetched h") == b"HD h0"
    assert shown(server, b"mg given s") == {b"s5", b"X", b"Z"}
    assert shown(server, b"mg stale s") == {b"s5", b"X", b"W"}
    assert shown(server, b"mg stale s") == {b"s5", b"X", b"Z"}
    assert ask(server, b"mg vivified s") == b"HD s0 Z"
    assert ask(server, b"mg AAEC/f7/ b s k") == b"HD s5 kAAEC/f7/ b"
    assert ask(server, b"mg %s s" % longest) == b"HD s5"


def test_flushed_items_stay_flushed(region, name):
    server = region.start(*ROOMY)
    flushed = Contents(server, sizes=[100, 3_000_000], small=2000).items
    assert ask(server, b"flush_all") == b"OK"
    later = Contents(server, sizes=[10, 1_000_000], small=1000)
    gone = [key for key in flushed if key not in later.items]
    server = region.restart(server, name, *ROOMY)
    assert not any(look_up(server, gone).values())
    later.check(server)
    # After the second flush, the server has no items.
    assert ask(server, b"flush_all") == b"OK"
    server = region.restart(server, name, *ROOMY)
    assert not any(look_up(server, [*gone, *later.items]).values())


def test_a_delayed_flush_happens_after_the_restart(region, name):
    server = region.start()
    with client(server) as before:
        before.set("early", b"1")
        before.set("timed", b"1", expire=1000)
    due = time.monotonic() + DELAY_SECS
    assert ask(server, b"flush_all %d" % DELAY_SECS) == b"OK"
    server = region.restart(server, name)
    with client(server) as after:
        kept = after.get_many(["early", "timed"])
        # The flush may take effect up to a second early, because the delay has a resolution of a second.
        if time.monotonic() < due - 1:
            assert kept == {"early": b"1", "timed": b"1"}
        wait_past(due + 1)
        assert after.get_many(["early", "timed"]) == {}
        after.set("late", b"1")
        assert after.get("late") == b"1"
    server = region.restart(server, name)
    assert [key for key, item in look_up(server, ["early", "timed", "late"]).items() if item] == ["late"]


def test_a_delayed_flush_is_not_missed_while_no_server_runs(region, name):
    server = region.start()
    with client(server) as before:
        before.set("early", b"1")
    due = time.monotonic() + 2
    assert ask(server, b"flush_all 2") == b"OK"
    end(server, name)
    wait_past(due + 1)
    server = region.start()
    assert_warm(server)
    with client(server) as after:
        assert after.get("early") is None
        after.set("late", b"1")
        assert after.get("late") == b"1"


def test_expired_items_stay_expired(region, name):
    server = region.start()
    with client(server) as before:
        for size in (10, 3000, 500_000):
            before.set(f"before-{size}", b"x" * size, expire=1)
            before.set(f"down-{size}", b"x" * size, expire=4)
            before.set(f"kept-{size}", b"x" * size, expire=4)
            before.touch(f"kept-{size}", 1000)
        stored = time.monotonic()
        wait_until(lambda: before.get("before-500000") is None, "expiry")
    end(server, name)
    # These items expire while no server runs, so no maintenance removes them.
    wait_past(stored + 5)
    server = region.start()
    assert_warm(server)
    with client(server) as after:
        for size in (10, 3000, 500_000):
            assert after.get(f"before-{size}") is None
            assert after.get(f"down-{size}") is None
            assert after.get(f"kept-{size}") == b"x" * size
            assert after.add(f"down-{size}", b"new")
        wait_until(lambda: curr_items(server) == 6, "removing expired items")


def test_an_item_expires_after_the_restart_as_it_would_have(region, name):
    server = region.start()
    with client(server) as before:
        before.set("item", b"1", expire=DELAY_SECS)
    due = time.monotonic() + DELAY_SECS
    server = region.restart(server, name)
    with client(server) as after:
        found = after.get("item")
        if time.monotonic() < due - 1:
            assert found == b"1"
        wait_past(due + 1)
        assert after.get("item") is None
