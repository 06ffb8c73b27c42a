"""Rounds of a crash test: load, SIGKILL at a random moment, a restart with the same file, and a check of the workers'
keys and of a sample of the other keys.

A campaign is a series of rounds with one region file. In most campaigns, memory is ample, and the server must keep at
least 99.9 % of the items. In the other campaigns, the cache is full and the server evicts items. No value may ever be
wrong."""

import collections
import random
import subprocess
import threading
import time

from bulk import Bulk
from crash_load import LARGE_LENGTHS, LAST, LENGTHS, Played, Player, Script, split
from items import look_up
from model import Clock, Flush, Impossible, Key, describe, describe_all
from region import Region, state
from server import LARDERD, TIMEOUT_SECS, Server

ROUNDS_PER_CAMPAIGN = 50
WORKERS, NUMBERS = 4, 20
LOAD_SECS_MAX = 0.05
# Seconds within which maintenance must remove expired items.
COUNT_SECS = 15
KEPT_SHARE_MIN = 0.999
# The share of the rounds that change the memory limit under load.
RESIZE_SHARE = 0.2
# The maximum number of printed failures. Further failures are only counted.
PRINTED_MAX = 50
THREADS = [1, 2, 2, 2, 4, 4, 16]
# The parameters of a campaign. `limits` are the memory limits in MiB, and `evicts` says whether the server evicts
# items. `longest` is the parameter of `Bulk`. Each worker has `keys` keys, with long values if `large` is true. It
# sends `pace` chunks of requests per second of load. `flush_share` is the share of rounds with a flush of all items.
Kind = collections.namedtuple("Kind", "name limits evicts longest keys large pace flush_share")
# In a campaign, `Bulk` stores 55 MB on average, or up to 100 MB if the machine is fast enough to send all requests.
AMPLE = Kind("ample memory", [128, 160, 160, 160, 256], False, 100, 80, False, 6000, 0)
LARGE = Kind("large values", [128, 128, 160], False, 100, 16, True, 400, 0.05)
FULL = Kind("full memory", [16, 16, 16, 20, 24], True, 4000, 80, False, 6000, 0.1)
FULL_LARGE = Kind("full of large values", [32, 32, 40], True, 4000, 80, True, 400, 0.05)
SMALL = FULL._replace(name="little memory", limits=[4, 4, 5, 8], longest=500)
# Campaigns of 50 rounds cycle through these kinds. A run of 200 rounds covers the first four kinds, and a run of 350
# rounds all of them.
KINDS = [AMPLE, FULL, LARGE, AMPLE._replace(flush_share=0.2), FULL_LARGE, SMALL, AMPLE]


class Interrupted(Server):
    """A server that is killed `delay` seconds after its process has started, possibly before it accepts connections."""

    def __init__(self, delay, *words, **more):
        self.delay = delay
        super().__init__(*words, **more)

    def _await_start(self, ports):
        time.sleep(self.delay)
        self.process.kill()
        self.process.wait()


class Killer:
    """A process that sends signals. A thread could send them late, because other threads hold the interpreter lock."""

    SCRIPT = 'while read -r delay signal pid; do sleep "$delay"; kill -s "$signal" "$pid"; done'

    def __init__(self):
        self.process = subprocess.Popen(["sh", "-c", self.SCRIPT], stdin=subprocess.PIPE, text=True)

    def send(self, delay, signal, pid):
        self.process.stdin.write(f"{delay:.4f} {signal} {pid}\n")
        self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Totals:
    """Counts verdicts, and prints failures."""

    def __init__(self, seed):
        self.seed, self.verdicts, self.failures = seed, collections.Counter(), 0

    def fail(self, round_number, message):
        self.failures += 1
        if self.failures <= PRINTED_MAX:
            print(f"seed {self.seed}, round {round_number}, {message}", flush=True)

    def count(self, verdict, round_number, key, expected, found):
        self.verdicts[verdict] += 1
        if verdict in ("lost", "wrong", "back"):
            self.fail(round_number, f"key {key}: {verdict}: expected {expected}, found {describe(found)}")

    @property
    def passed(self):
        seen = self.verdicts
        due = seen["kept"] + seen["lost"]
        few = due and seen["kept"] / due < KEPT_SHARE_MIN
        other = self.failures - seen["lost"] - seen["wrong"] - seen["back"]
        return bool(due) and not (few or seen["wrong"] or seen["back"] or other)

    def line(self):
        seen = self.verdicts
        names = ("kept", "lost", "wrong", "back", "evicted")
        return ", ".join(f"{seen[name]} {name}" for name in names)


class Campaign:
    """Rounds with one region file. `signal` stops the server in each round."""

    def __init__(self, totals, seed, kind, binary=LARDERD, runtime=None, signal="KILL"):
        self.totals, self.kind, self.signal = totals, kind, signal
        self.rng, self.number = random.Random(seed), 0
        self.binary, self.more = binary, {"runtime": runtime, "unix": True}
        self.bulk = Bulk(self.rng.randrange(2**32), kind.longest, kind.evicts)
        self.scripts = [self.script(worker) for worker in range(WORKERS)]

    def script(self, worker):
        keys = [Key(b"key-%d-%d" % (worker, n), self.kind.evicts) for n in range(self.kind.keys)]
        numbers = [Key(b"number-%d-%d" % (worker, n), self.kind.evicts) for n in range(NUMBERS)]
        lengths = LARGE_LENGTHS if self.kind.large else LENGTHS
        return Script(random.Random(self.rng.randrange(2**32)), keys, numbers, lengths)

    def run(self, first, count):
        """Runs some rounds, starting with the number `first`."""
        with Region(lambda *options, **more: Server(self.binary, options=options, **more)) as region:
            self.region, self.killer = region, Killer()
            try:
                for self.number in range(first, first + count):
                    self.round(self.number == first)
                self.finish()
            finally:
                self.killer.close()

    def options(self):
        return ["-m", str(self.rng.choice(self.kind.limits)), "-t", str(self.rng.choice(THREADS))]

    def start(self, is_first):
        if not is_first and self.rng.random() < 0.05:
            words = ["-e", str(self.region.file), *self.options()]
            Interrupted(self.rng.uniform(0, 0.03), self.binary, options=words, **self.more).stop()
        self.server = self.region.start(*self.options(), **self.more)
        shown = state(self.server)
        if (shown == "cold") != is_first:
            self.totals.fail(self.number, f"restart_state is {shown}: {self.server.output()}")

    def round(self, is_first):
        self.start(is_first)
        self.check_keys()
        self.check_bulk(self.bulk.sample(self.rng, 4, 300))
        self.load()

    def load(self):
        """Sends requests until `signal` stops the server, and computes the possible states."""
        seconds = self.rng.uniform(0, LOAD_SECS_MAX)
        count = 20 + int(seconds * self.kind.pace)
        go = threading.Event()
        chunks = [[script.chunk() for _ in range(count)] for script in self.scripts]
        players = [
            Player(self.server, [b"".join(request.wire for _, request in chunk) + LAST for chunk in made], go)
            for made in chunks
        ]
        bulk = Player(self.server, self.bulk.chunks(count // 2), go)
        everyone = [*players, bulk, Player(self.server, self.reads(count), go)]
        if self.rng.random() < RESIZE_SHARE:
            delay = self.rng.uniform(0, seconds)
            everyone.append(Player(self.server, [self.resize() for _ in range(3)], go, delay))
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
        self.bulk.played(bulk.played, flush)
        for script, made, player in zip(self.scripts, chunks, players):
            self.follow(script, made, player.played, flush)

    def reads(self, count):
        """Returns the requests of a client that reads random keys and ignores the replies."""
        names = [key.name for script in self.scripts for key in script.keys]
        names += [self.bulk.key(self.rng.randrange(self.bulk.next + 1)) for _ in range(20)]
        return [b"get %s\r\n" % b" ".join(self.rng.choices(names, k=10)) + LAST for _ in range(count)]

    def resize(self):
        return b"cache_memlimit %d\r\n" % self.rng.choice(self.kind.limits) + LAST

    def await_end(self, players):
        status = self.server.process.wait(TIMEOUT_SECS)
        if status != (-9 if self.signal == "KILL" else 0):
            self.totals.fail(self.number, f"the server exited with {status}: {self.server.output()}")
        for player in players:
            if player.broken or player.is_alive():
                self.totals.fail(self.number, f"no answer: {player.broken!r}: {self.server.output()}")
        self.server.stop()

    def follow(self, script, chunks, played, flush):
        """Computes the states that the keys of a worker may have."""
        keys = [*script.keys, *script.numbers]
        Clock.note_request(max((end - begin for begin, end, *_ in played), default=0))
        for key in keys:
            key.begin(flush)
        for chunk, (begin, end, received, complete) in zip(chunks, played):
            answers, whole = split(received, [request.form for _, request in chunk])
            if whole != complete:
                last = chunk[-1][1].wire[:80]
                self.totals.fail(self.number, f"answers {bytes(received[-200:])!r} to {last!r}")
            for (key, request), answer in zip(chunk, answers):
                try:
                    key.answered(request, answer, begin, end)
                except Impossible as error:
                    self.totals.verdicts["wrong"] += 1
                    self.totals.fail(self.number, f"key {key.name.decode()}: {error}")
            in_flight = collections.defaultdict(list)
            for key, request in chunk[len(answers) :]:
                in_flight[key].append(request)
            for key, requests in in_flight.items():
                key.unanswered(requests, begin, end)
        now = time.monotonic()
        for key in keys:
            key.end(now)

    def check_keys(self):
        keys = [key for script in self.scripts for key in (*script.keys, *script.numbers)]
        begin = time.monotonic()
        found = look_up(self.server, [key.name.decode() for key in keys])
        end = time.monotonic()
        for key in keys:
            name, possible = key.name.decode(), key.states
            item = found[name]
            verdict = key.judge(item, begin, end)
            self.totals.count(verdict, self.number, name, Lazy(describe_all, possible), item)

    def check_bulk(self, numbers):
        for verdict, key, expected, item in self.bulk.check(self.server, numbers):
            self.totals.count(verdict, self.number, key, expected, item)

    def finish(self):
        """Checks all items. Without evictions and flushes, also checks that the server's count of items is exact."""
        self.number += 1
        self.start(False)
        self.check_keys()
        self.check_bulk(self.bulk.all())
        # The server counts flushed items until maintenance removes them, some seconds later.
        if not self.kind.evicts and not self.kind.flush_share:
            self.check_count()
        self.server.stop()

    def check_count(self):
        """Waits until the count is correct: the server counts expired items until maintenance removes them."""
        deadline = time.monotonic() + COUNT_SECS
        while (shown := int(self.server.stats()["curr_items"])) != (there := self.dumped()):
            if time.monotonic() > deadline:
                return self.totals.fail(self.number, f"curr_items is {shown}, but there are {there} items")
            time.sleep(0.2)

    def dumped(self):
        with self.server.connect() as sock, sock.makefile("rb") as replies:
            sock.sendall(b"lru_crawler metadump all\r\n")
            return sum(line.startswith(b"key=") for line in iter(replies.readline, b"END\r\n"))


class Lazy:
    """A string that is built only if it is printed."""

    def __init__(self, make, *words):
        self.make, self.words = make, words

    def __str__(self):
        return self.make(*self.words)


def read_flush(played):
    """Returns the flush of a round (the times of sending and of the reply), or None if the flush was not sent."""
    if not played:
        return None
    chunk = Played(*played[0])
    return Flush(chunk.begin, chunk.end if chunk.received.startswith(b"OK\r\n") else None)


def run(rounds, seed, binary=LARDERD, runtime=None, progress=None):
    """Runs rounds in campaigns. After each campaign, calls `progress(done, totals)`, where `done` is the number of
    rounds completed so far. Returns the totals."""
    totals, done = Totals(seed), 0
    while done < rounds:
        count = min(ROUNDS_PER_CAMPAIGN, rounds - done)
        kind = KINDS[done // ROUNDS_PER_CAMPAIGN % len(KINDS)]
        Campaign(totals, f"{seed}-{done}", kind, binary, runtime).run(done, count)
        done += count
        if progress:
            progress(done, totals)
    return totals
