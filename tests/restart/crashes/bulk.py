"""Many small items, stored in the order of their numbers. They make the index grow and fill segments. The number of a
key determines its value."""

import zlib

from crash_load import LAST, POOL
from items import look_up

CHUNK = 100
# A chunk deletes every eighth item of the previous chunk.
DELETED_EVERY = 8


class Bulk:
    """The items of one region. A value consists of the item's number, a checksum, and 10 to `longest` + 9 bytes of
    text. If `evicts` is true, the server may evict items."""

    def __init__(self, seed, longest, evicts):
        self.seed, self.longest, self.evicts = seed, longest, evicts
        # The chunks from `live_from` to `next` - 1 were stored. The chunks in `torn` were only partly confirmed, so
        # some of their items may be missing.
        self.live_from, self.next, self.torn = 0, 0, set()
        # The chunks from `flushed_from` to `live_from` - 1 were flushed.
        self.flushed_from = 0

    def key(self, number):
        return b"bulk-%d" % number

    def value(self, number):
        mixed = zlib.crc32(b"%d" % number, self.seed)
        body = POOL[mixed % 1000 : mixed % 1000 + 10 + (mixed >> 10) % self.longest]
        return b"%d:%08x:" % (number, mixed) + body

    def chunk(self, chunk):
        """Returns the requests of a chunk. Only the last request gets a reply."""
        wire = []
        for number in range(chunk * CHUNK, (chunk + 1) * CHUNK):
            value = self.value(number)
            wire.append(b"set %s 0 0 %d noreply\r\n%s\r\n" % (self.key(number), len(value), value))
        for number in range((chunk - 1) * CHUNK, chunk * CHUNK if chunk else 0, DELETED_EVERY):
            wire.append(b"delete %s noreply\r\n" % self.key(number))
        return b"".join(wire) + LAST

    def chunks(self, count):
        return [self.chunk(self.next + n) for n in range(count)]

    def played(self, played, flush):
        """Records the sent chunks, and a flush by another connection."""
        first = self.next
        self.next += len(played)
        self.torn |= {first + n for n, chunk in enumerate(played) if not chunk.complete}
        if flush is None:
            return
        if flush.answered is None:
            # The flush got no reply, so the earlier items either all exist or were all flushed. The test no longer
            # checks them.
            self.flushed_from = self.live_from = self.next
            self.torn.clear()
            return
        before = sum(chunk.end < flush.sent for chunk in played)
        during = sum(chunk.begin <= flush.answered for chunk in played)
        self.flushed_from, self.live_from = self.live_from, first + before
        self.torn = {chunk for chunk in self.torn if chunk >= self.live_from}
        self.torn.update(range(first + before, first + during))

    def expected(self, number):
        """Returns the expected state of an item: `there`, `gone` or `unsure`."""
        chunk = number // CHUNK
        if chunk in self.torn:
            return "unsure"
        if chunk < self.live_from:
            return "gone"
        if number % CHUNK % DELETED_EVERY == 0:
            last = chunk + 1 >= self.next
            return "there" if last else "unsure" if chunk + 1 in self.torn else "gone"
        return "there"

    def sample(self, rng, fresh, older):
        """Returns the numbers to look up: all numbers of the last `fresh` chunks, and up to `older` random numbers of
        all chunks."""
        first = max(self.flushed_from, self.next - fresh) * CHUNK
        numbers = set(range(first, self.next * CHUNK))
        if self.flushed_from < self.next:
            numbers |= {rng.randrange(self.flushed_from * CHUNK, self.next * CHUNK) for _ in range(older)}
        return sorted(numbers)

    def all(self):
        return range(self.flushed_from * CHUNK, self.next * CHUNK)

    def check(self, server, numbers):
        """Looks up the items with these numbers. Yields the verdict, the key, the expected state and the found item for
        each number."""
        found = look_up(server, [self.key(number).decode() for number in numbers])
        for number in numbers:
            key = self.key(number).decode()
            item, expected = found[key], self.expected(number)
            if item is None:
                missed = "evicted" if self.evicts else "lost"
                verdict = missed if expected == "there" else "absent"
            elif item.value != self.value(number) or item.flags or item.ttl >= 0:
                verdict = "wrong"
            else:
                verdict = {"there": "kept", "gone": "back", "unsure": "absent"}[expected]
            yield verdict, key, expected, item
