"""What a key may show after a crash: all states that the answers of its requests leave possible.

A request without an answer was executed or not. A flush by another client was executed at some moment
between its request and its answer. So a key has a set of possible states, nearly always of one.
"""

from typing import NamedTuple


class Clock:
    """By how many seconds an item may expire earlier or later than its client expects: the server's clock
    has seconds, and it executes a request at some moment before its answer, which may be long after it was
    sent on a busy machine."""

    SLACK_SECS = 2.0
    slack_secs = SLACK_SECS

    @classmethod
    def note_request(cls, secs):
        """A request was answered after so many seconds."""
        cls.slack_secs = max(cls.slack_secs, cls.SLACK_SECS + secs)


class State(NamedTuple):
    """An item. A key without one has the state None."""

    value: bytes
    flags: int
    # On the client's monotonic clock; None: never.
    expires: float | None
    # None: not known, because no answer has shown it.
    cas: int | None


class Flush(NamedTuple):
    """A flush of all items by another connection: when it was sent, and answered (None: not)."""

    sent: float
    answered: float | None


class Impossible(Exception):
    """No possible state gives the answer that was received."""


class Key:
    """A key with the states that it may have. `evicts`: the server may drop items at any moment."""

    __slots__ = ("name", "states", "evicts", "configs", "flush")

    def __init__(self, name, evicts):
        self.name, self.evicts = name, evicts
        self.states = {None}
        self.configs = None

    def begin(self, flush):
        """Begins to follow a round with at most one flush."""
        self.flush = flush
        # Pairs of a state and whether the flush has been executed.
        self.configs = {(state, False) for state in self.states}

    def _pass_time(self, begin, end):
        """What may happen between two moments without a request for this key."""
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
        """The request was executed between two moments; `answer` is None if it has none."""
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
        """The server ended while these requests were in flight: the first of them were executed."""
        self._pass_time(begin, end)
        possible = set(self.configs)
        for request in requests:
            self.configs = {(request.apply(state, begin)[0], flushed) for state, flushed in self.configs}
            if self.flush is not None or self.evicts:
                self._pass_time(begin, end)
            possible |= self.configs
        self.configs = possible

    def end(self, now):
        """Ends the round, after the server is gone."""
        self._pass_time(now, now)
        self.states = {state for state, _ in self.configs}
        self.configs = None

    def judge(self, found, begin, end):
        """Compares with the `Item` that was read between two moments, or None; returns the verdict: kept,
        absent, evicted, lost, wrong or back. What was found is the key's state afterwards."""
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
    """Whether an item that was read between two moments is this one."""
    if state.value != found.value or state.flags != found.flags:
        return False
    if state.cas is not None and state.cas != found.cas:
        return False
    # The server says -1 for an item that never expires, and shows no item that has expired.
    if state.expires is None or found.ttl < 0:
        return state.expires is None and found.ttl < 0
    left = state.expires - end - Clock.slack_secs, state.expires - begin + Clock.slack_secs
    return left[0] <= found.ttl <= left[1]


def describe_all(states):
    return " or ".join(sorted(map(describe, states))) or "nothing"


def describe(state):
    """A `State` or an `Item`, with the beginning of its value, for a message."""
    if state is None:
        return "no item"
    more = ", ".join(f"{name} {shown}" for name, shown in zip(state._fields[1:], state[1:]))
    return f"{len(state.value)} bytes {state.value[:60]!r} ({more})"
