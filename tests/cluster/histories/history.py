"""Histories of keys. Only one client, the writer, changes a key, and each change has a higher version; all clients read
the key. All times are from the same clock."""

import math
from dataclasses import dataclass

# Kinds of changes.
SET, EMPTY, DELETE = "set", "set empty", "delete"
# States that several versions can have.
ABSENT, IS_EMPTY = "absent", "empty"
KIND_OF_STATE = {ABSENT: DELETE, IS_EMPTY: EMPTY}

# Outcomes of changes.
PENDING = "pending"
ACKED = "acknowledged"
# The server reported the failure by an error reply, or closed the connection although the server was still running.
FAILED = "failed"
# The server was killed or stopped, or the client stopped waiting.
UNKNOWN = "unknown"
# The server replied that the condition of the change was not met.
UNMET = "unmet"


class TornValue(Exception):
    """A value that no writer of the key has sent."""


@dataclass(slots=True)
class Change:
    """A change of a key. The version is the position of the change in the history, from 1."""

    version: int
    kind: str
    client: str
    invoked: float
    ended: float = math.inf
    outcome: str = PENDING
    cas: int | None = None
    error: str = ""

    def line(self, start):
        return (
            f"{span(self.invoked, self.ended, start)}  version {self.version}: {self.kind}, {self.outcome}"
            f"{' (' + self.error + ')' if self.error else ''}{shown_cas(self.cas)}  {self.client}"
        )


@dataclass(slots=True)
class Read:
    """A read with a reply. `state` is a version, ABSENT or IS_EMPTY. If the client has sent changes after the read on
    the same connection, `before` is the version of the first of these changes; otherwise None."""

    state: int | str
    client: str
    invoked: float
    ended: float
    cas: int | None = None
    before: int | None = None

    def line(self, start):
        state = f"version {self.state}" if isinstance(self.state, int) else self.state
        before = f", sent before version {self.before}" if self.before else ""
        return f"{span(self.invoked, self.ended, start)}  read {state}{before}{shown_cas(self.cas)}  {self.client}"


def span(invoked, ended, start):
    end = "..." if ended == math.inf else f"{ended - start:.4f}"
    return f"{invoked - start:9.4f} to {end:>9}"


def shown_cas(cas):
    return "" if cas is None else f", CAS {cas}"


class KeyHistory:
    """The changes and reads of a key. Only the key's writer adds changes."""

    def __init__(self, name):
        self.name = name
        self.changes, self.reads = [], []

    def begin(self, kind, client, now):
        """Records a change that the client is about to send."""
        change = Change(len(self.changes) + 1, kind, client, now)
        self.changes.append(change)
        return change

    def value(self, change, length):
        """Returns the value of a change. No other change of any key has the same value."""
        return b"" if change.kind == EMPTY else encode(self.name, change.version, length)

    def add_read(self, value, *, client, invoked, ended, cas=None, before=None):
        read = Read(self._state(value), client, invoked, ended, cas, before)
        self.reads.append(read)
        return read

    def _state(self, value):
        if value is None:
            return ABSENT
        return decode(self.name, value) if value else IS_EMPTY

    def excerpt(self, around, count=16):
        """Returns about `count` operations around a time, in the order of their starts."""
        operations = sorted([*self.changes, *self.reads], key=lambda one: one.invoked)
        after = next((at for at, one in enumerate(operations) if one.invoked > around), len(operations))
        return operations[max(0, after - count) : after + count // 4]


def encode(key, version, length):
    """Returns a value of at least `length` bytes that repeats the key and the version."""
    part = f"{key} {version} {length};".encode()
    return (part * (length // len(part) + 1))[: max(length, len(part))]


def decode(key, value):
    """Returns the version of a value. Raises `TornValue` unless `value` is a complete value of the key."""
    try:
        name, version, length = value.partition(b";")[0].decode().split()
        if name == key and encode(key, int(version), int(length)) == value:
            return int(version)
    except ValueError:
        pass
    raise TornValue(f"{len(value)} bytes: {value[:80]!r}...")
