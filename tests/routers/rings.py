"""The ring (ketama) that twemproxy and memcached's proxy use to map keys to servers."""

import bisect
import hashlib

POINTS_PER_SERVER = 160


class Ring:
    """A ring of servers with these names and equal weights. `hash_key` hashes a key to 32 bits."""

    def __init__(self, names, hash_key):
        self.hash_key = hash_key
        self.points = sorted((point, name) for name in names for point in points(name))

    def owner(self, key):
        """Returns the name of the server that owns a key: the server of the first point at or after the key's hash.
        After the last point, the ring wraps around."""
        at = bisect.bisect_left(self.points, (self.hash_key(key.encode()),))
        return self.points[at % len(self.points)][1]


def points(name):
    """Yields the points of a server: four for each MD5 digest."""
    for number in range(POINTS_PER_SERVER // 4):
        digest = hashlib.md5(f"{name}-{number}".encode()).digest()
        yield from (int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4))


def fnv1a_64(key):
    """Computes twemproxy's `fnv1a_64`, which calculates with 32 bits. Keys must be ASCII, because twemproxy reads
    signed bytes."""
    found = 0x84222325
    for byte in key:
        found = ((found ^ byte) * 0x1B3) & 0xFFFFFFFF
    return found


def md5(key):
    """Returns the hash that libmemcached's ketama uses: the first four bytes of the MD5 digest, in little-endian
    order."""
    return int.from_bytes(hashlib.md5(key).digest()[:4], "little")
