"""The possible states of a key after a crash, given the replies to its requests.

A request without a reply may or may not have been executed. A flush by another client was executed at some moment
between its request and its reply. A key therefore has a set of possible states, nearly always of one element."""

from typing import NamedTuple


class Clock:
    """The tolerance for expiries: the maximum difference in seconds between the actual expiry of an item and the expiry
    that its client expects. The server's expiries have a resolution of a second, and a busy machine may execute a
    request late."""

    SLACK_SECS = 2.0
    slack_secs = SLACK_SECS

    @classmethod
    def note_request(cls, secs):
        """Raises the tolerance if a request that was answered after `secs` seconds requires this."""
        cls.slack_secs = max(cls.slack_secs, cls.SLACK_SECS + secs)


class State(NamedTuple):
    """The state of a key that has an item. The state of a key without an item is None."""

    value: bytes
    flags: int
    # The expiry on the client's monotonic clock; None for no expiry.
    expires: float | None
    # None if the CAS value is unknown because no reply contained it.
    cas: int | None


class Flush(NamedTuple):
    """A flush by another connection: the times of sending and of the reply (None without a reply)."""

    sent: float
    answered: float | None


class Impossible(Exception):
    """No possible state explains the received reply."""


class Key:
    """A key with its possible states. If `evicts` is true, the server may evict items at any moment."""

    __slots__ = ("name", "states", "evicts", "configs", "flush")

    def __init__(self, name, evicts):
        self.name, self.evicts = name, evicts
        self.states = {None}
        self.configs = None

    def begin(self, flush):
        """Starts a round with at most one flush."""
        self.flush = flush
        # Pairs of a possible state, and whether the flush has already been executed in this case.
        self.configs = {(state, False) for state in self.states}

    def _pass_time(self, begin, end):
        """Adds the states that the key may reach between the moments `begin` and `end` without a request: by expiry,
        eviction or the flush."""
        passed, flush = set(), self.flush
        surely = flush is not None and flush.answered is not None and flush.answered < begin
        maybe = flush is not None and not surely and flush.sent < end
        for state, flushed in self.configs:
            if state is not None and state.expires is not None:
                if begin > state.expires + Clock.slack_secs:
                    state = None
                elif end > state.expires - Clock.slack_secs:
                    passed.add((None, flushed))
            if surely and not flushed:
                passed.add((None, True))
                continue
            passed.add((state, flushed))
            if maybe:
                passed.add((None, True))
            if self.evicts:
                passed.add((None, flushed))
        self.configs = passed

    def answered(self, request, answer, begin, end):
        """Records that the server executed a request between the moments `begin` and `end`. `answer` is None for a
        request without a reply. Raises `Impossible` if no possible state explains the reply."""
        self._pass_time(begin, end)
        left, answers = set(), set()
        for state, flushed in self.configs:
            after, expected = request.apply(state, begin)
            if answer is None or expected == answer:
                left.add((after, flushed))
            else:
                answers.add(expected)
        if not left:
            before = {state for state, _ in self.configs}
            self.configs = {(None, True)}
            raise Impossible(f"answer {answer[:80]!r} to {request.wire[:80]!r} in {describe_all(before)}")
        self.configs = left
        if self.flush is not None or self.evicts:
            self._pass_time(begin, end)

    def unanswered(self, requests, begin, end):
        """Records that the server exited while these requests were in flight. It executed a prefix of them, which may
        be empty or complete."""
        self._pass_time(begin, end)
        possible = set(self.configs)
        for request in requests:
            self.configs = {(request.apply(state, begin)[0], flushed) for state, flushed in self.configs}
            if self.flush is not None or self.evicts:
                self._pass_time(begin, end)
            possible |= self.configs
        self.configs = possible

    def end(self, now):
        """Ends the round. The server must have exited."""
        self._pass_time(now, now)
        self.states = {state for state, _ in self.configs}
        self.configs = None

    def judge(self, found, begin, end):
        """Compares the possible states with `found`, the `Item` (or None) that was read between the moments `begin` and
        `end`. Returns the verdict: kept, absent, evicted, lost, wrong or back. Afterwards, the key's only possible
        state is the found one."""
        states = set()
        for state in self.states:
            if state is not None and state.expires is not None:
                if begin > state.expires + Clock.slack_secs:
                    state = None
                elif end > state.expires - Clock.slack_secs:
                    states.add(None)
            states.add(state)
        if found is None:
            verdict = "absent" if None in states else "evicted" if self.evicts else "lost"
            if self.evicts and states != {None}:
                verdict = "evicted"
            self.states = {None}
            return verdict
        for state in states:
            if state is not None and fits(state, found, begin, end):
                self.states = {state._replace(cas=found.cas)}
                return "kept"
        expires = None if found.ttl < 0 else end + found.ttl
        self.states = {State(found.value, found.flags, expires, found.cas)}
        return "back" if states == {None} else "wrong"


def fits(state, found, begin, end):
    """Returns whether an item that was read between the moments `begin` and `end` can be the item of this state."""
    if state.value != found.value or state.flags != found.flags:
        return False
    if state.cas is not None and state.cas != found.cas:
        return False
    # The server returns -1 for an item that never expires, and does not return expired items.
    if state.expires is None or found.ttl < 0:
        return state.expires is None and found.ttl < 0
    left = state.expires - end - Clock.slack_secs, state.expires - begin + Clock.slack_secs
    return left[0] <= found.ttl <= left[1]


def describe_all(states):
    return " or ".join(sorted(map(describe, states))) or "nothing"


def describe(state):
    """Describes a `State` or an `Item` with the first bytes of its value, for a message."""
    if state is None:
        return "no item"
    more = ", ".join(f"{name} {shown}" for name, shown in zip(state._fields[1:], state[1:]))
    return f"{len(state.value)} bytes {state.value[:60]!r} ({more})"
