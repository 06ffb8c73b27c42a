"""Rounds of a crash test with flash: most items are on flash when the server is killed.

In addition to the faults of `rounds`, some rounds end with a planned shutdown, and some servers start without flash,
with a flash file of another length, or with a new file. Items on flash are then lost and must not reappear. Items in
memory may remain.

The server is built with the feature `larder-server/delayed`, and writes the keys of evicted items to a file. Other
items must not be missing, except for a few: a `set` may evict an item on flash whose key has the same hash prefix
(docs/flash.md)."""

import random
import tempfile
import threading
import time
from pathlib import Path

from bulk import CHUNK, Bulk
from crash_load import LAST, POOL, Player, Script
from items import look_up
from model import Key, describe_all
from region import end, state
from rounds import (
    NUMBERS,
    ROUNDS_PER_CAMPAIGN,
    THREADS,
    WORKERS,
    Campaign,
    Kind,
    Lazy,
    Totals,
    read_flush,
)
from server import LARDERD, TIMEOUT_SECS

LOAD_SECS_MAX = 0.2
# The number of live chunks of `FlashBulk`. They take about 90 MB, in addition to 2.5 MB for the workers' keys.
WINDOW = 800
PRELOADED = 500
# The lengths of values, in the form of `crash_load`. The minimum of 100 bytes makes all items except numbers exceed
# `ext_item_size`.
LENGTHS = [(0.5, (100, 800)), (0.95, (800, 4000)), (1, (4000, 9000))]
# With the lowest memory limit, values of 12 KB or more have their own segments.
LARGE_LENGTHS = [(0.6, (100, 9000)), (0.95, (9000, 40_000)), (1, (40_000, 120_000))]
LIMITS = [16, 16, 20, 24, 32, 64]
SIZES_MIB = [256, 320]
# Pauses between chunks in seconds. They give the server time to write items to flash before it evicts them.
BULK_PACE_SECS, PACE_SECS = 0.006, 0.001
POLL = b"stats\r\n" + LAST
# While more writes than this wait for the disk, the load sends no chunk of `FlashBulk`.
WAITING_WRITES_MAX = 1
PACED = Kind("flash", LIMITS, False, 1500, 300, False, 2000, 0)
FLUSHED = PACED._replace(name="flash and flushes", flush_share=0.1)
LARGE = PACED._replace(name="flash and large values", large=True, keys=300)
# The load sends requests as fast as the server reads them, so the server evicts many items before it has written them
# to flash.
HEAVY = PACED._replace(name="flash, heavily written", evicts=True, pace=6000)
KINDS = [PACED, HEAVY, FLUSHED, LARGE]
# Statistics that must stay zero, because all reads succeed.
FAULTS = ["badcrc_from_extstore", "miss_from_extstore", "flash_off"]


class FlashBulk(Bulk):
    """Items in chunks. Each chunk also deletes the items of the chunk that was stored `WINDOW` chunks earlier."""

    def __init__(self, seed, longest):
        super().__init__(seed, longest, evicts=False)
        # The numbers of items that were missing at a check. They must not reappear.
        self.missing = set()

    def value(self, number):
        return super().value(number) + POOL[: 200 + number % 1000]

    def chunk(self, chunk):
        wire = super().chunk(chunk).removesuffix(LAST)
        old = range((chunk - WINDOW) * CHUNK, (chunk - WINDOW + 1) * CHUNK) if chunk >= WINDOW else ()
        return wire + b"".join(b"delete %s noreply\r\n" % self.key(number) for number in old) + LAST

    def expected(self, number):
        last = number // CHUNK + WINDOW
        if number in self.missing or (last < self.next and last not in self.torn):
            return "gone"
        if last < self.next:
            return "unsure"
        return super().expected(number)

    def all(self):
        """Returns the numbers of all items that may exist, and of as many deleted items."""
        return range(max(self.flushed_from, self.next - 2 * WINDOW) * CHUNK, self.next * CHUNK)

    def check(self, server, numbers):
        for number, checked in zip(numbers, list(super().check(server, numbers))):
            _, _, expected, item = checked
            if item is None and expected != "gone":
                self.missing.add(number)
            yield checked


class Quiet(Totals):
    """Counts failures without printing them."""

    def fail(self, round_number, message):
        self.failures += 1


class PacedPlayer(Player):
    """A player that waits between chunks."""

    def __init__(self, server, chunks, go, pace):
        super().__init__(server, chunks, go)
        self.pace = pace

    def play(self, wire):
        time.sleep(self.pace)
        return super().play(wire)


class DiskPacedPlayer(PacedPlayer):
    """A player that also waits for the disk."""

    def play(self, wire):
        while (poll := super().play(POLL)).complete and shown(poll, "extstore_io_queue") > WAITING_WRITES_MAX:
            pass
        return super().play(wire) if poll.complete else poll


class FlashCampaign(Campaign):
    """Rounds with one region file, and one flash file in `folder`."""

    def __init__(self, totals, seed, kind, binary=LARDERD, runtime=None, folder=None):
        super().__init__(totals, seed, kind, binary, runtime)
        self.flash_folder = folder
        self.bulk = FlashBulk(self.rng.randrange(2**32), kind.longest)
        self.item_size = self.rng.choice([0, 64])
        self.scripts = [self.flash_script(worker) for worker in range(WORKERS)]
        self.size_mib = SIZES_MIB[0]
        # The keys of all items that have been evicted.
        self.evicted = set()
        # Whether, since the last check, the test has made the server lose the items on flash.
        self.lost_flash = False
        self.on_flash = 0
        # Whether flash holds almost no items.
        self.is_empty = True

    def flash_script(self, worker):
        keys = [Key(b"key-%d-%d" % (worker, n), evicts=False) for n in range(self.kind.keys)]
        numbers = [Key(b"number-%d-%d" % (worker, n), evicts=False) for n in range(NUMBERS)]
        lengths = LARGE_LENGTHS if self.kind.large else LENGTHS
        return Script(random.Random(self.rng.randrange(2**32)), keys, numbers, lengths)

    def run(self, first, count):
        with tempfile.TemporaryDirectory(prefix="larder-flash-", dir=self.flash_folder) as folder:
            self.flash_file = Path(folder) / "flash"
            with open(Path(folder) / "evicted", "xb+", buffering=0) as self.evicted_keys:
                self.more["environment"] = {"EVICTED_KEYS_FILE": self.evicted_keys.name}
                super().run(first, count)

    def limit(self):
        return ["-m", str(self.rng.choice(self.kind.limits)), "-t", str(self.rng.choice(THREADS))]

    def options(self):
        path = f"ext_path={self.flash_file}:{self.size_mib}m"
        # With an `ext_recache_rate` of 0, the lookups of a check do not copy items from flash to memory.
        return [*self.limit(), "-o", f"{path},ext_item_size={self.item_size},ext_recache_rate=0"]

    def start(self, is_first):
        change = None
        if not is_first:
            drawn = self.rng.random()
            changes = [(0.03, "no flash"), (0.06, "other size"), (0.08, "new file")]
            change = next((what for share, what in changes if drawn < share), None)
        if change == "no flash":
            self.start_without_flash()
        elif change == "other size":
            self.size_mib = next(size for size in SIZES_MIB if size != self.size_mib)
        elif change == "new file":
            self.flash_file.unlink()
        self.lost_flash |= change is not None
        super().start(is_first)
        self.is_empty |= is_first or change is not None

    def start_without_flash(self):
        """Starts a server without flash. This server and the next server have only the items that were in memory."""
        most = str(max(self.kind.limits))
        self.server = self.region.start("-m", most, **self.more)
        if (shown := state(self.server)) == "cold":
            self.totals.fail(self.number, f"without flash, restart_state is {shown}")
        self.lost_flash = True
        self.check_keys()
        self.check_bulk(())
        end(self.server, "SIGKILL")

    def round(self, is_first):
        self.start(is_first)
        self.check_keys()
        self.check_bulk(self.bulk.sample(self.rng, 4, 300))
        if self.is_empty:
            self.fill()
        self.load()

    def fill(self):
        """Stores more items than memory holds."""
        go = threading.Event()
        go.set()
        player = DiskPacedPlayer(self.server, self.bulk.chunks(PRELOADED), go, BULK_PACE_SECS)
        player.run()
        self.bulk.played(player.played, None)
        self.on_flash = max(self.on_flash, int(self.server.stats()["extstore_objects_used"]))

    def note_evictions(self):
        """Returns the keys that were evicted since the last call. The server writes a key to the file before it removes
        the item."""
        lines = self.evicted_keys.read().decode().splitlines()
        self.evicted.update(lines)
        return set(lines)

    def check_keys(self):
        """Checks the workers' keys."""
        keys = [key for script in self.scripts for key in (*script.keys, *script.numbers)]
        begin = time.monotonic()
        found = look_up(self.server, [key.name.decode() for key in keys])
        end = time.monotonic()
        # The start may have evicted items because of a lower memory limit.
        evicted = self.note_evictions()
        for key in keys:
            name, possible = key.name.decode(), key.states
            item = found[name]
            verdict = key.judge(item, begin, end)
            if verdict == "lost" and (self.lost_flash or name in evicted):
                verdict = "evicted"
            self.totals.count(verdict, self.number, name, Lazy(describe_all, possible), item)

    def check_bulk(self, numbers):
        checked = list(self.bulk.check(self.server, self.bulk.all() if self.lost_flash else numbers))
        self.note_evictions()
        for verdict, key, expected, item in checked:
            if verdict == "lost" and (self.lost_flash or key in self.evicted):
                verdict = "evicted"
            self.totals.count(verdict, self.number, key, expected, item)
        self.lost_flash = False
        shown = self.server.stats()
        self.on_flash = max(self.on_flash, int(shown.get("extstore_objects_used", 0)))
        for name in FAULTS:
            if int(shown.get(name, 0)):
                self.totals.fail(self.number, f"{name} is {shown[name]}")

    def load(self):
        with self.server.connect() as sock:
            sock.sendall(b"extstore recache_rate %d\r\n" % self.rng.choice([0, 1, 5]))
            assert sock.recv(100) == b"OK\r\n"
        self.signal = "USR1" if self.rng.random() < 0.1 else "KILL"
        seconds = self.rng.uniform(0, self.rng.choice([LOAD_SECS_MAX / 4, LOAD_SECS_MAX]))
        count = 20 + int(seconds * self.kind.pace)
        go = threading.Event()
        chunks = [[script.chunk() for _ in range(count)] for script in self.scripts]
        players = [
            PacedPlayer(
                self.server,
                [b"".join(request.wire for _, request in chunk) + LAST for chunk in made],
                go,
                0 if self.kind.evicts else PACE_SECS,
            )
            for made in chunks
        ]
        if self.kind.evicts:
            bulk = Player(self.server, self.bulk.chunks(10 + int(seconds / 0.001)), go)
        else:
            sent = self.bulk.chunks(10 + int(seconds / BULK_PACE_SECS))
            bulk = DiskPacedPlayer(self.server, sent, go, BULK_PACE_SECS)
        everyone = [*players, bulk, Player(self.server, self.reads(count), go)]
        flushing = []
        if self.rng.random() < self.kind.flush_share:
            delay = self.rng.uniform(0, seconds)
            flushing = [Player(self.server, [b"flush_all\r\n" + LAST], go, delay)]
        everyone += flushing
        for player in everyone:
            player.start()
        self.killer.send(seconds, self.signal, self.server.pid)
        go.set()
        for player in everyone:
            player.join(TIMEOUT_SECS)
        self.await_end(everyone)
        flush = read_flush(flushing[0].played) if flushing else None
        self.is_empty = flush is not None
        self.bulk.played(bulk.played, flush)
        self.evicted_under_load = self.note_evictions()
        for script, made, player in zip(self.scripts, chunks, players):
            self.follow(script, made, player.played, flush)

    def follow(self, script, chunks, played, flush):
        """Computes the states that the keys of a worker may have. If an item was missing under load but its key is not
        in the file of evicted keys, counts a loss."""
        keys = [*script.keys, *script.numbers]
        states = {key: set(key.states) for key in keys}
        for key in keys:
            key.evicts = key.name.decode() in self.evicted_under_load
        totals, self.totals = self.totals, Quiet(self.totals.seed)
        super().follow(script, chunks, played, flush)
        failures, self.totals = self.totals.failures, totals
        if failures:
            self.totals.verdicts["lost"] += 1
            self.totals.fail(self.number, f"{failures} replies under load show a lost item")
            for key in keys:
                key.states, key.evicts = states[key], True
            super().follow(script, chunks, played, flush)
        for key in keys:
            key.evicts = False

    def finish(self):
        self.number += 1
        self.start(False)
        self.check_keys()
        self.check_bulk(self.bulk.all())
        self.server.stop()
        if not self.on_flash:
            self.totals.fail(self.number, "no item was on flash")


def shown(poll, name):
    """Returns a number from a reply to `stats`, or 0 if the reply is truncated before it."""
    prefix = f"STAT {name} ".encode()
    lines = poll.received.split(b"\r\n")[:-1]
    return next((int(line[len(prefix) :]) for line in lines if line.startswith(prefix)), 0)


def run(rounds, seed, binary=LARDERD, runtime=None, progress=None):
    """Runs rounds in campaigns. The flash file is alternately on tmpfs and in the directory for temporary files.
    Returns the totals."""
    totals, done, campaigns = Totals(seed), 0, 0
    while done < rounds:
        count = min(ROUNDS_PER_CAMPAIGN, rounds - done)
        kind = KINDS[campaigns % len(KINDS)]
        folder = "/dev/shm" if campaigns % 2 else None
        FlashCampaign(totals, f"{seed}-{done}", kind, binary, runtime, folder).run(done, count)
        done, campaigns = done + count, campaigns + 1
        if progress:
            progress(done, totals)
    return totals
