"""The failover of clients of several servers: a call that has changed nothing moves to another server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Key
    from .hash import Hasher

#: The maximum number of stored hashers. The limit only matters with many servers, of which different ones fail in turn.
_HASHERS_MAX = 64


def may_move(error: Exception) -> bool:
    """Returns whether a call that failed with this error may use another server: the server or the network is at fault,
    the call has changed nothing, and the call has not timed out while it waited for its reply."""
    return getattr(error, "_may_move", False)


class Failover:
    """The servers of keys while some servers fail. The hasher of the client distributes the keys of failed servers over
    the others."""

    def __init__(self, hasher: Callable[[], Hasher]) -> None:
        self._create = hasher
        #: A hasher for each set of failed servers.
        self._hashers: dict[frozenset[str], Hasher] = {}

    def forget(self) -> None:
        """Handles a change of the client's servers."""
        # Replaces the dictionary instead of clearing it, because another thread may be adding a hasher of the previous
        # servers.
        self._hashers = {}

    def get_node(self, key: Key, names: Callable[[], Iterable[str]], failed: frozenset[str]) -> str | None:
        """Returns the server of a key among the servers of the client without those that have `failed`, or `None` if no
        server is left."""
        hashers = self._hashers
        hasher = hashers.get(failed)
        if hasher is None:
            left = [name for name in names() if name not in failed]
            if not left:
                return None
            hasher = self._create()
            for name in left:
                hasher.add_node(name)
            if len(hashers) >= _HASHERS_MAX:
                hashers.clear()
            hashers[failed] = hasher
        return hasher.get_node(key)


class Attempts:
    """The servers that have failed in one call, and the first error, which the call raises if no server is left."""

    def __init__(self) -> None:
        self.failed: frozenset[str] = frozenset()
        self.error: Exception | None = None

    def add(self, name: str, error: Exception) -> None:
        self.failed |= {name}
        self.error = self.error or error


def grouped(keys: Iterable[Key], name_of: Callable[[Key], str | None]) -> tuple[dict[str, list[Key]], list[Key]]:
    """Groups keys by server. Also returns the keys that have no server."""
    batches: dict[str, list[Key]] = defaultdict(list)
    unassigned = []
    for key in keys:
        name = name_of(key)
        if name is None:
            unassigned.append(key)
        else:
            batches[name].append(key)
    return batches, unassigned
