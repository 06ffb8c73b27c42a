"""Many successive restarts."""

import random

import pytest

from contents import Contents, client, value
from items import Snapshot
from region import ENDS, Region
from server import MIB, ExitedAtStart, wait_until

pytestmark = pytest.mark.larder

RESTARTS = 10
# The sizes of items in a full cache: inline, nearly as large as a segment, and in chains.
MIX = [
    10, 100, 1000, 5000, 9000, 11_000, 12_200, 12_300, 16_300, 16_400, 30_000, 48_000, 50_000, 100_000,
    400_000,
]  # fmt: skip
SMALLEST_MIB_MAX = 8
BATCH_LEN = 100_000


def test_ten_restarts_keep_everything(region):
    rng = random.Random(1)
    server = region.start("-m", "128")
    contents = Contents(server, [10, 1000, 300_000], small=5000)
    contents.check(server)
    added = {}
    for n in range(RESTARTS):
        name = ENDS[n % len(ENDS)]
        server = region.restart(server, name, "-m", "128", "-t", str(rng.choice([1, 2, 4, 8])))
        contents.check(server)
        with client(server) as user:
            assert user.get_many(list(added)) == added
            more = {f"round-{n}-{m}": value(m, m * 50) for m in range(100)}
            assert user.set_many(more) == []
            added |= more
        assert int(server.stats()["curr_items"]) == contents.live() + len(added)


def churn(server, rng, mib, mix=MIX):
    """Stores `mib` MiB of values, of all sizes in `mix`. Returns each key's value."""
    contents, stored = {}, 0
    with client(server) as user:
        while stored < mib * MIB:
            batch, sent = {}, stored + BATCH_LEN
            while stored < sent:
                size = rng.choice(mix)
                batch[f"mix-{rng.randrange(10**9)}"] = value(stored % 997, size)
                stored += size
            user.set_many(batch, noreply=True)
            contents |= batch
        assert user.version()
    return contents


def check_values(snapshot, contents):
    for key, item in snapshot.items.items():
        assert item is None or item.value == contents[key], key


def smallest(start):
    """Returns the smallest memory limit with which a server starts, in MiB."""

    for mib in range(1, SMALLEST_MIB_MAX + 1):
        with Region(start) as probe:
            try:
                probe.start("-m", str(mib), "-I", "64k")
                return mib
            except ExitedAtStart:
                pass
    raise AssertionError(f"-m {SMALLEST_MIB_MAX} is refused")


# Memory limit in MiB, number of threads, and the minimum share of a full cache's items that a restart must keep.
FULL = [(64, 4, 0.999), (24, 1, 0.999), (24, 16, 0.98)]


@pytest.mark.parametrize("mib, threads, share", FULL)
def test_ten_restarts_of_a_full_cache(region, mib, threads, share):
    options = ["-m", str(mib), "-t", str(threads)]
    rng = random.Random(mib * threads)
    server = region.start(*options)
    contents = {}
    for n in range(RESTARTS):
        contents |= churn(server, rng, 2 * mib if n == 0 else mib / 4)
        before = Snapshot(server, contents)
        check_values(before, contents)
        server = region.restart(server, ENDS[n % len(ENDS)], *options)
        kept = before.compare(server, may_miss=True)
        assert kept >= share * len(before.live()), f"restart {n}: {kept} of {len(before.live())}"
        contents = {key: contents[key] for key in before.live()}
    assert int(server.stats()["evictions"]) >= 0
    # Even after several restarts, unused parts of open segments must not occupy much memory.
    churn(server, rng, 2 * mib)
    assert int(server.stats()["bytes"]) >= 0.5 * mib * MIB


def test_sixteen_threads_under_the_smallest_limit(region, start):
    mib = smallest(start)
    options = ["-m", str(mib), "-I", "64k", "-t", "16"]
    rng = random.Random(mib)
    server = region.start(*options)
    contents = {}
    for n in range(RESTARTS):
        contents |= churn(server, rng, 2 * mib, [size for size in MIX if size <= 48_000])
        before = Snapshot(server, contents)
        check_values(before, contents)
        assert before.live(), "nothing was stored"
        server = region.restart(server, ENDS[n % len(ENDS)], *options)
        kept = before.compare(server, may_miss=True)
        assert kept >= 0.5 * len(before.live()), f"restart {n}: {kept} of {len(before.live())}"
    churn(server, rng, 2 * mib, [100])
    wait_until(lambda: int(server.stats()["curr_items"]) > 0, "storing")


def test_restarts_while_nothing_is_stored(region):
    server = region.start()
    for name in 3 * ENDS:
        server = region.restart(server, name)
        assert int(server.stats()["curr_items"]) == 0


def test_memory_is_not_lost_with_each_restart(region):
    """The server reuses segments that were open or being written when it crashed."""
    server = region.start("-m", "32", "-t", "4")
    live = []
    for n in range(RESTARTS):
        churn(server, random.Random(n), 64, [1000])
        live.append(int(server.stats()["bytes"]))
        server = region.restart(server, "SIGKILL", "-m", "32", "-t", "4")
    assert min(live) >= 0.95 * live[0], live
