"""Items as clients see them: value, flags, CAS and remaining lifetime."""

import time
from typing import NamedTuple

# The tolerance for lifetimes in seconds: the server's expiries have a resolution of a second, and reading takes time.
TTL_SLACK_SECS = 2
NEVER = -1
BATCH = 100


class Item(NamedTuple):
    """The fields of an item that `mg` returns. `ttl` is in seconds, or `NEVER`."""

    value: bytes
    flags: int
    cas: int
    ttl: int


def read_item(replies):
    """Reads a reply to `mg <key> f c t s v`. Returns None after a miss."""
    words = replies.readline().split()
    if words == [b"EN"]:
        return None
    assert words and words[0] == b"VA", words
    value = replies.read(int(words[1]) + 2)
    shown = {word[:1]: int(word[1:]) for word in words[2:]}
    assert value.endswith(b"\r\n") and shown[b"s"] == len(value) - 2, words
    return Item(value[:-2], shown[b"f"], shown[b"c"], shown[b"t"])


def look_up(server, keys):
    """Looks up all keys (of type str). Returns an `Item` or None for each key."""
    keys, found = list(keys), {}
    with server.connect() as sock, sock.makefile("rb") as replies:
        for first in range(0, len(keys), BATCH):
            batch = keys[first : first + BATCH]
            sock.sendall(b"".join(b"mg %s f c t s v\r\n" % key.encode() for key in batch))
            for key in batch:
                found[key] = read_item(replies)
    return found


def brief(item):
    """Returns an item for a message, with long values truncated."""
    if item is None or len(item.value) <= 60:
        return item
    return item._replace(value=item.value[:60] + b"... (%d bytes)" % len(item.value))


class Snapshot:
    """All items of a server, read between the moments `begin` and `end`."""

    def __init__(self, server, keys):
        self.begin = time.monotonic()
        self.items = look_up(server, keys)
        self.end = time.monotonic()

    def live(self):
        return [key for key, item in self.items.items() if item]

    def compare(self, server, may_miss=False):
        """Checks that the server has the same items. If `may_miss` is true, some items may have been evicted. Returns
        the number of items that the server still has."""
        now, kept = Snapshot(server, self.items), 0
        shortest, longest = now.begin - self.end, now.end - self.begin
        for key, found in now.items.items():
            item = self.items[key]
            if found is None and may_miss:
                continue
            assert (found and found[:3]) == (item and item[:3]), (
                f"{key}: expected {brief(item)}, found {brief(found)}"
            )
            if item is None:
                continue
            kept += 1
            if item.ttl == NEVER:
                assert found.ttl == NEVER, f"{key}: expected no expiry, found {found.ttl} s"
            else:
                check_ttl(key, found.ttl, item.ttl - longest, item.ttl - shortest)
        return kept


def check_ttl(key, found, least, most):
    """Checks a remaining lifetime, in seconds."""
    assert least - TTL_SLACK_SECS <= found <= most + TTL_SLACK_SECS, (
        f"{key}: expected {least:.1f} to {most:.1f} s to live, found {found}"
    )
