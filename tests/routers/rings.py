"""The ring on which twemproxy and memcached's proxy place servers and keys (ketama)."""

import bisect
import hashlib

POINTS_PER_SERVER = 160


class Ring:
    """A ring of servers with these names and equal weights; `hash_key` makes 32 bits of a key."""

    def __init__(self, names, hash_key):
        self.hash_key = hash_key
        self.points = sorted((point, name) for name in names for point in points(name))

    def owner(self, key):
        """The name of the server that a key belongs to: the one at the first point that is not before the key. Behind
        the last point the ring starts again."""
        at = bisect.bisect_left(self.points, (self.hash_key(key.encode()),))
        return self.points[at % len(self.points)][1]


def points(name):
    """The points of a server: four for each MD5."""
    for number in range(POINTS_PER_SERVER // 4):
        digest = hashlib.md5(f"{name}-{number}".encode()).digest()
        yield from (int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4))


def fnv1a_64(key):
    """twemproxy's `fnv1a_64`, which calculates with 32 bits. Keys have to be ASCII: it reads signed bytes."""
    found = 0x84222325
    for byte in key:
        found = ((found ^ byte) * 0x1B3) & 0xFFFFFFFF
    return found


def md5(key):
    """The hash of libmemcached's ketama: the first four bytes of the MD5."""
    return int.from_bytes(hashlib.md5(key).digest()[:4], "little")
