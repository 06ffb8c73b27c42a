"""Conversions of values with pymemcache's names and flags. larder_client and pymemcache can read each other's
values."""

import pickle
import zlib
from collections.abc import Callable
from typing import Any, Protocol

FLAG_BYTES = 0
FLAG_PICKLE = 1 << 0
FLAG_INTEGER = 1 << 1
FLAG_LONG = 1 << 2
FLAG_COMPRESSED = 1 << 3
FLAG_TEXT = 1 << 4

DEFAULT_PICKLE_VERSION = pickle.HIGHEST_PROTOCOL

Serializer = Callable[[Any, Any], tuple[Any, int]]
Deserializer = Callable[[Any, bytes, int], Any]


class Serde(Protocol):
    """The conversion of a client's values. Its methods receive the key of the call, without the client's prefix."""

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        """Returns the value to store and 32-bit flags. If the value is not `bytes`, the client converts it to text and
        encodes the text."""

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        """Converts stored bytes and flags to a value."""


class PickleSerde:
    """Stores `bytes`, `str` and `int` without pickling them, so that other programs can read the values and `incr`
    works. Pickles all other values. Never use this serde with a cache that untrusted programs can write to, because
    unpickling executes code."""

    def __init__(self, pickle_version: int = DEFAULT_PICKLE_VERSION) -> None:
        self._pickle_version = pickle_version

    def serialize(self, key: Any, value: Any) -> tuple[bytes, int]:
        # Pickles values of derived classes, because a read must restore the class.
        kind = type(value)
        if kind is bytes:
            return value, FLAG_BYTES
        if kind is str:
            return value.encode(), FLAG_TEXT
        if kind is int:
            return b"%d" % value, FLAG_INTEGER
        return pickle.dumps(value, self._pickle_version), FLAG_PICKLE

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        """Converts stored bytes and flags to a value. Returns `None`, as for a miss, if the value cannot be unpickled,
        for example because its class no longer exists."""
        if flags & FLAG_TEXT:
            return value.decode()
        if flags & (FLAG_INTEGER | FLAG_LONG):
            return int(value)
        if flags & FLAG_PICKLE:
            try:
                return pickle.loads(value)
            except Exception:
                return None
        return value


class CompressedSerde:
    """Compresses the output of another serde if the output has more than `min_compress_len` bytes and the compressed
    output is not longer. A `min_compress_len` of 0 disables compression."""

    def __init__(
        self,
        compress: Callable[[bytes], bytes] = zlib.compress,
        decompress: Callable[[bytes], bytes] = zlib.decompress,
        serde: Serde = PickleSerde(),
        min_compress_len: int = 400,
    ) -> None:
        self._compress = compress
        self._decompress = decompress
        self._serde = serde
        self._min_compress_len = min_compress_len

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        data, flags = self._serde.serialize(key, value)
        if len(data) > self._min_compress_len > 0:
            compressed = self._compress(data)
            if len(compressed) <= len(data):
                return compressed, flags | FLAG_COMPRESSED
        return data, flags

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        if flags & FLAG_COMPRESSED:
            value = self._decompress(value)
        return self._serde.deserialize(key, value, flags)


class LegacyWrappingSerde:
    """A serde that calls two functions. If a function is `None`, values stay unchanged."""

    def __init__(self, serializer_func: Serializer | None, deserializer_func: Deserializer | None) -> None:
        self.serialize = serializer_func or _serialize_nothing
        self.deserialize = deserializer_func or _deserialize_nothing

    @property
    def is_plain(self) -> bool:
        """Returns whether both functions leave all values unchanged."""
        return self.serialize is _serialize_nothing and self.deserialize is _deserialize_nothing


def _serialize_nothing(key: Any, value: Any) -> tuple[Any, int]:
    return value, 0


def _deserialize_nothing(key: Any, value: bytes, flags: int) -> Any:
    return value


def get_python_memcache_serializer(pickle_version: int = DEFAULT_PICKLE_VERSION) -> Serializer:
    """Returns the serializer of a `PickleSerde` as a function."""
    return PickleSerde(pickle_version).serialize


pickle_serde = PickleSerde()
compressed_serde = CompressedSerde()
python_memcache_serializer = pickle_serde.serialize
python_memcache_deserializer = pickle_serde.deserialize
