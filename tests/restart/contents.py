"""Fills a server with items of all kinds through pymemcache."""

import contextlib
import random
import time

from pymemcache.client.base import Client

from items import NEVER, Snapshot, brief, check_ttl

# The lengths of values, from empty values to values in chains of segments. The longest values need -I 8m.
SIZES = [0, 1, 2, 9, 50, 230, 1000, 4000, 16_000, 65_536, 200_000, 1_000_000, 3_000_000, 5_000_000]
ROOMY = ["-m", "512", "-I", "8m"]
SMALL_ITEMS = 20_000
MONTH_SECS = 30 * 24 * 3600
POOL = random.Random(1).randbytes(max(SIZES) + 1000)


def client(server):
    """Returns a client of the server for a `with` block."""
    address = server.path or (server.host, server.port)
    return contextlib.closing(Client(address, timeout=60, default_noreply=False))


def value(number, size):
    """Returns a value of this size. Its content depends on the number."""
    first = number * 37 % 1000
    return POOL[first : first + size]


class Contents:
    """The expected items: for each key, its value, flags and lifetime in seconds, or None if it has no item."""

    def __init__(self, server, sizes=SIZES, small=SMALL_ITEMS):
        self.items, self.begun = {}, time.monotonic()
        with client(server) as self.client:
            for size in sizes:
                self.store(size)
                self.change(size)
                self.extend(size)
            self.count()
            self.spread(small)
        self.at = time.monotonic()
        self.snapshot = None

    def set(self, key, stored, flags=0, life=0):
        assert self.client.set(key, stored, expire=life, flags=flags)
        self.items[key] = (stored, flags, life or NEVER)

    def store(self, size):
        """Stores items with all kinds of flags and lifetimes. Lifetimes of 70,000 s do not fit in 16 bits."""
        self.set(f"plain-{size}", value(1, size))
        self.set(f"flags-{size}", value(2, size), flags=1)
        self.set(f"all-flags-{size}", value(3, size), flags=2**32 - 1)
        self.set(f"life-{size}", value(4, size), flags=4, life=1000)
        self.set(f"long-life-{size}", value(5, size), life=70_000)
        until = int(time.time()) + 2 * MONTH_SECS
        assert self.client.set(f"date-{size}", value(6, size), expire=until)
        self.items[f"date-{size}"] = (value(6, size), 0, 2 * MONTH_SECS)
        assert self.client.set(f"expired-{size}", value(6, size), expire=-1)
        self.items[f"expired-{size}"] = None

    def change(self, size):
        """Overwrites, deletes and touches items."""
        self.set(f"same-size-{size}", value(7, size), flags=7)
        self.set(f"same-size-{size}", value(8, size), flags=8)
        for other in (10, 100_000):
            self.set(f"from-{size}-to-{other}", value(9, size), life=1000)
            self.set(f"from-{size}-to-{other}", value(10, other))
        for key in (f"deleted-{size}", f"again-{size}", f"never-{size}"):
            if not key.startswith("never"):
                self.set(key, value(11, size))
                assert self.client.delete(key)
            self.items[key] = None
        self.set(f"again-{size}", value(12, size), flags=12)
        self.set(f"touched-{size}", value(13, size), flags=13, life=50)
        assert self.client.touch(f"touched-{size}", 5000)
        self.items[f"touched-{size}"] = (value(13, size), 13, 5000)
        self.set(f"untimed-{size}", value(14, size), life=50)
        assert self.client.touch(f"untimed-{size}", 0)
        self.items[f"untimed-{size}"] = (value(14, size), 0, NEVER)
        self.set(f"compared-{size}", value(15, size))
        _, unique = self.client.gets(f"compared-{size}")
        assert self.client.cas(f"compared-{size}", value(16, size), unique)
        assert self.client.cas(f"compared-{size}", value(17, size), unique) is False
        self.items[f"compared-{size}"] = (value(16, size), 0, NEVER)

    def extend(self, size):
        """Adds, replaces, appends and prepends items."""
        key = f"extended-{size}"
        assert not self.client.replace(key, b"x")
        assert self.client.add(key, value(18, size), flags=18)
        assert not self.client.add(key, b"x")
        assert self.client.append(key, value(19, size // 2 + 1))
        assert self.client.prepend(key, value(20, 3))
        whole = value(20, 3) + value(18, size) + value(19, size // 2 + 1)
        self.items[key] = (whole, 18, NEVER)
        self.set(f"replaced-{size}", b"short", life=1000)
        assert self.client.replace(f"replaced-{size}", value(21, size), flags=21)
        self.items[f"replaced-{size}"] = (value(21, size), 21, NEVER)

    def count(self):
        for start, up in [(0, 1), (9, 1), (99, 123_456), (2**64 - 2, 3)]:
            key = f"number-{start}"
            self.set(key, b"%d" % start, flags=3, life=9000)
            counted = (start + up) % 2**64
            assert self.client.incr(key, up) == counted
            # If the new number is shorter than the old number, spaces follow it, because the value keeps its length.
            shown = self.client.get(key)
            assert shown.rstrip(b" ") == b"%d" % counted
            self.items[key] = (shown, 3, 9000)

    def spread(self, count):
        """Stores many small items, which makes the index grow. Deletes every fifth item and changes every seventh."""
        small = {f"small-{n}": b"%d " % n + value(n, n % 200) for n in range(count)}
        assert self.client.set_many(small, expire=0) == []
        for number, (key, stored) in enumerate(small.items()):
            self.items[key] = (stored, 0, NEVER)
            if number % 5 == 0:
                self.client.delete(key, noreply=True)
                self.items[key] = None
            elif number % 7 == 0:
                self.client.append(key, b"!", noreply=True)
                self.items[key] = (stored + b"!", 0, NEVER)
        assert self.client.version()

    def live(self):
        return sum(item is not None for item in self.items.values())

    def check(self, server):
        """Checks that the server has exactly these items, with the same CAS values as at the last check."""
        now = Snapshot(server, self.items)
        for key, expected in self.items.items():
            found = now.items[key]
            assert (found and found[:2]) == (expected and expected[:2]), (
                f"{key}: expected {expected and (expected[0][:60], *expected[1:])}, found {brief(found)}"
            )
            if expected and expected[2] == NEVER:
                assert found.ttl == NEVER, (key, found.ttl)
            elif expected:
                longest, shortest = now.end - self.begun, now.begin - self.at
                check_ttl(key, found.ttl, expected[2] - longest, expected[2] - shortest)
        if self.snapshot:
            self.snapshot.compare(server)
        self.snapshot = now
