"""A restart with other options keeps all items or, with a lower -m, as many items as fit. Only a change of -C (no CAS
values) causes a cold start."""

import pytest

from contents import Contents, client, value
from items import Snapshot, look_up
from region import end, state
from server import MIB, ExitedAtStart, wait_until
from tiers import long

pytestmark = pytest.mark.larder

SIZES = [10, 3000, 400_000]
# Maximum memory of the region file beyond its limit for items.
ALLOWANCE = 8 * MIB


def limit(server):
    return int(server.stats()["limit_maxbytes"])


@pytest.mark.parametrize("name", [long("SIGTERM"), "SIGKILL"])
@pytest.mark.parametrize(
    "first, second",
    [
        (["-t", "4"], ["-t", "1"]),
        (["-t", "1"], ["-t", "8"]),
        (["-t", "4"], ["-t", "64"]),
        ([], ["-M"]),
        (["-M"], []),
        ([], ["-I", "4m"]),
        (["-I", "4m"], ["-I", "16k"]),
        (["-c", "1024"], ["-c", "100"]),
        (["-m", "64"], ["-m", "65"]),
        (["-m", "64"], ["-m", "63"]),
        (["-m", "64"], ["-m", "48"]),
        (["-m", "64"], ["-m", "256"]),
        (["-m", "64", "-t", "1"], ["-m", "80", "-t", "16", "-I", "2m", "-M", "-o", "no_lru_crawler"]),
    ],
    ids=lambda words: "".join(words) or "defaults",
)  # fmt: skip
def test_other_options_keep_the_items(region, name, first, second):
    """Changes the options, then restores them, then changes them again."""
    server = region.start(*first)
    contents = Contents(server, SIZES, small=5000)
    contents.check(server)
    for options in (second, first, second):
        server = region.restart(server, name, *options)
        contents.check(server)
        wait_until(lambda: int(server.stats()["curr_items"]) == contents.live(), "counting items")


def test_a_server_with_another_item_size_limit_has_longer_items(region):
    server = region.start("-m", "128", "-I", "16m")
    with client(server) as before:
        assert before.set("long", value(1, 3_000_000))
    server = region.restart(server, "SIGKILL", "-m", "128", "-I", "1m")
    with client(server) as after:
        assert after.get("long") == value(1, 3_000_000)
        assert after.touch("long", 1000)
        assert after.delete("long")


def fill(server, mib, size=10_000):
    """Stores `mib` MiB of values. Returns a snapshot of the items."""
    count = mib * MIB // size
    with client(server) as filler:
        for first in range(0, count, 100):
            filler.set_many({f"fill-{n}": value(n, size) for n in range(first, first + 100)}, noreply=True)
        assert filler.version()
    return Snapshot(server, [f"fill-{n}" for n in range(count)])


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_lower_limit_evicts_step_by_step(region, name):
    server = region.start("-m", "192")
    filled = fill(server, 160)
    assert len(filled.live()) == len(filled.items)
    server = region.restart(server, name, "-m", "48")
    # The evictions must not have damaged any value.
    filled.compare(server, may_miss=True)
    with client(server) as cache:
        assert cache.set("new", b"1")
        assert cache.get("new") == b"1"
    wait_until(lambda: int(server.stats()["bytes"]) <= 48 * MIB, "evicting down to the limit")
    wait_until(lambda: region.allocated() <= 48 * MIB + ALLOWANCE, "giving memory back")
    kept = filled.compare(server, may_miss=True)
    assert 0.5 * 48 * MIB <= kept * 10_000 <= 48 * MIB
    assert limit(server) == 48 * MIB
    # The next restart keeps the remaining items, even with a higher limit.
    rest = Snapshot(server, filled.items)
    server = region.restart(server, name, "-m", "192")
    assert rest.compare(server) == len(rest.live())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_higher_limit_has_room_for_more(region, name):
    server = region.start("-m", "32")
    filled = fill(server, 24)
    assert filled.live()
    server = region.restart(server, name, "-m", "96")
    assert filled.compare(server) == len(filled.live())
    raised = limit(server)
    assert raised == 96 * MIB or (raised >= 32 * MIB and "-m" in server.output()), server.output()
    if raised == 96 * MIB:
        more = fill(server, 80)
        assert len(more.live()) == len(more.items)


def test_cache_memlimit_does_not_affect_restarts(region):
    """`cache_memlimit` raises and lowers the limit, but the next server has the limit of its options."""
    server = region.start("-m", "64")
    with server.connect() as sock:
        for mib in (128, 32, 256):
            sock.sendall(b"cache_memlimit %d\r\n" % mib)
            assert sock.recv(100) == b"OK\r\n"
    filled = fill(server, 200)
    server = region.restart(server, "SIGKILL", "-m", "64")
    filled.compare(server, may_miss=True)
    wait_until(lambda: region.allocated() <= 64 * MIB + ALLOWANCE, "giving memory back")
    assert limit(server) == 64 * MIB


def store_plain(server):
    """Stores and deletes some items. Returns each key's value or None."""
    contents = {f"plain-{size}": value(size, size) for size in SIZES}
    with client(server) as filler:
        assert filler.set_many({**contents, "deleted": b"1"}) == []
        assert filler.delete("deleted")
    return {**contents, "deleted": None}


@pytest.mark.parametrize("first, second", [([], ["-C"]), (["-C"], [])], ids=["to-C", "from-C"])
def test_a_change_of_cas_values_starts_cold(region, first, second):
    server = region.start(*first)
    contents = store_plain(server)
    end(server, "SIGTERM")
    server = region.start(*second)
    assert state(server) == "cold"
    assert region.file.name in server.output(), "the log names the file that is not used"
    assert not any(look_up(server, contents).values())
    with client(server) as after:
        assert after.set("key", b"1") and after.get("key") == b"1"
    server = region.restart(server, "SIGTERM", *second)
    assert look_up(server, ["key"])["key"].value == b"1"


def test_without_cas_values_the_items_are_kept_too(region):
    server = region.start("-C")
    contents = store_plain(server)
    server = region.restart(server, "SIGKILL", "-C")
    found = look_up(server, contents)
    assert {key: item and item.value for key, item in found.items()} == contents


@pytest.mark.parametrize("other", ["moka", "dashmap"])
def test_engines_that_cannot_keep_items_refuse(region, other):
    with pytest.raises(ExitedAtStart) as refused:
        region.start(engine=other)
    assert refused.value.status == 64
    assert "-e" in refused.value.output and "segment" in refused.value.output
