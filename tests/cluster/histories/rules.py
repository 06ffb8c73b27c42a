"""The guarantees of docs/failover.md and docs/sharding.md, as rules about the history of a key.

A key has one writer, which sends a change only after its previous change has ended. Changes therefore take effect in
the order of their versions, except for changes that may take effect after their end. `Conditions` determines the latest
time at which a change may take effect:

- for an acknowledged or failed change: its end;
- for a change with an unknown outcome (the client's server was killed or stopped, or the client stopped waiting): 2 s
  after its end, or 20 s if a connection was slow because of a pause or a cut.

An *observation* is an acknowledged change or the reply to a read. It shows the state of the key at some time between
its start and its end. The main rule: **a read that starts after the end of an observation shows the same state, or the
state of a change that may have taken effect after the start of the observation.** This rule detects lost changes,
values that reappear, and changes that take effect after their failure was reported. It always holds for acknowledged
changes that `--ack` protects. For other acknowledged changes and for reads, it holds until the next unplanned leader
change.

Further rules:

- A read does not show a change that was sent after the read's end, or that was sent after the read on the same
  connection.
- A CAS value of a key belongs to only one change, and a change has only one CAS value. Otherwise, the change was
  executed twice.
- A change with a condition takes effect only if the key has the state that the condition requires.

Exceptions that docs/failover.md lists, and that `Conditions.tolerated` counts:

- Two leaders overlap by at most a second. During this time, a read may show the state from before the leader change.
- If a thread of the leader is paused during a change that fails, reads may return the earlier item first and the new
  item later. This may last for `PAUSED_THREAD_SECS`, from the end of a pause of a process.
- Changes that `--ack` does not protect can be lost with their leader."""

import bisect
import math
from collections import Counter
from dataclasses import dataclass, field

from history import ACKED, DELETE, EMPTY, FAILED, IS_EMPTY, KIND_OF_STATE, UNKNOWN, UNMET, Change

OVERLAP_SECS = 1
LATE_SECS, SLOW_LATE_SECS = 2, 20
# A pause or cut that ended at least this many seconds ago has no effect on the leases of connections.
SLOW_SECS = 15
# Time in seconds for which other load on the machine may deschedule a thread.
PAUSED_THREAD_SECS = 0.5

LOST = "an acknowledged change is lost"
REVERSAL = "a value came back"
LATE = "a failed change took effect after its failure was reported"
INVALID = "a value that no change can have stored by then"
CAS_REUSED = "a CAS value of the key is reused"
TWICE = "a change was made twice"
FIRST = Change(0, DELETE, "before the first change", -math.inf, -math.inf, ACKED)


@dataclass
class LeaderChange:
    """A change of a group's leader, which happened between two known times. Before a planned change, the former leader
    has sent all its changes to the next leader."""

    group: str
    earliest: float
    latest: float
    is_planned: bool
    leader: str = ""


@dataclass
class Violation:
    kind: str
    time: float
    text: str
    key: object = None


@dataclass
class Conditions:
    """The acknowledgement mode, and the events on which the exceptions depend."""

    ack: str
    leader_changes: list = field(default_factory=list)
    # Intervals, as pairs of start and end. In `pauses`, a process was paused. In `slow`, a fault made connections slow.
    pauses: list = field(default_factory=list)
    slow: list = field(default_factory=list)
    # The start of the run. Times in reports are relative to it.
    start: float = 0.0
    tolerated: Counter = field(default_factory=Counter)

    def __post_init__(self):
        """Merges the times of unplanned leader changes into disjoint intervals of uncertainty."""
        unplanned = sorted((one.earliest, one.latest) for one in self.leader_changes if not one.is_planned)
        self.losses = []
        for earliest, latest in unplanned:
            if self.losses and earliest <= self.losses[-1][1] + OVERLAP_SECS:
                self.losses[-1] = (self.losses[-1][0], max(latest, self.losses[-1][1]))
            else:
                self.losses.append((earliest, latest))

    def protects(self, change):
        return self.ack == "writes" or self.ack == "deletes" and change.kind in (DELETE, EMPTY)

    def effect_latest(self, change):
        """Returns the latest time at which a change may take effect."""
        if change.outcome != UNKNOWN:
            return change.ended
        is_slow = any(
            start <= change.ended + LATE_SECS and end >= change.ended - SLOW_SECS for start, end in self.slow
        )
        return change.ended + (SLOW_LATE_SECS if is_slow else LATE_SECS)

    def visible_latest(self, change):
        """Returns the latest time at which reads may start to show a change."""
        latest = self.effect_latest(change)
        if change.outcome == FAILED:
            ends = [end for start, end in self.pauses if start <= latest <= end]
            latest = max([latest, *ends]) + PAUSED_THREAD_SECS
        return latest

    def has_loss(self, start, end):
        """Returns whether a leader may have been lost between two times."""
        return any(latest >= start and earliest <= end for earliest, latest in self.losses)

    def overlap_start(self, time):
        """If two leaders may overlap at `time`, returns the start of that interval of uncertainty. Otherwise returns
        `time`."""
        number = bisect.bisect_right(self.losses, (time, math.inf))
        if number and time <= self.losses[number - 1][1] + OVERLAP_SECS:
            return self.losses[number - 1][0]
        return time

    def period(self, read):
        """Returns the number of the period between two unplanned leader changes that contains a read, or None if no
        period contains it entirely."""
        number = bisect.bisect_right(self.losses, (read.invoked, math.inf))
        if number and read.invoked <= self.losses[number - 1][1] + OVERLAP_SECS:
            return None
        if number < len(self.losses) and read.ended >= self.losses[number][0]:
            return None
        return number


@dataclass(slots=True)
class Sources:
    """The changes of one kind, in the order of their versions. `effect` and `visible` are running maxima of the latest
    times at which the changes may take effect and become visible."""

    invoked: list = field(default_factory=list)
    versions: list = field(default_factory=list)
    effect: list = field(default_factory=list)
    visible: list = field(default_factory=list)

    def add(self, change, conditions):
        self.invoked.append(change.invoked)
        self.versions.append(change.version)
        effect, visible = conditions.effect_latest(change), conditions.visible_latest(change)
        self.effect.append(max([effect, *self.effect[-1:]]))
        self.visible.append(max([visible, *self.visible[-1:]]))

    def latest(self, read):
        """Returns the latest times at which the state that a read shows may have taken effect and become visible, and
        the newest version with this state. Returns None if no change has this state."""
        count = bisect.bisect_right(self.invoked, read.ended)
        if read.before is not None:
            count = min(count, bisect.bisect_left(self.versions, read.before))
        return (self.effect[count - 1], self.visible[count - 1], self.versions[count - 1]) if count else None


class Observed:
    """The completed read that started last, and the completed read that started last among those with another state."""

    def __init__(self):
        self.last = self.other = None

    def add(self, read):
        if self.last is None or read.invoked > self.last.invoked:
            if self.last and self.last.state != read.state:
                self.other = self.last
            self.last = read
        elif read.state != self.last.state and (self.other is None or read.invoked > self.other.invoked):
            self.other = read

    def another(self, state):
        """Returns the read that started last among those with a state other than `state`, or None."""
        return self.other if self.last and self.last.state == state else self.last


class KeyCheck:
    """Checks the history of one key."""

    def __init__(self, history, conditions):
        self.history, self.conditions = history, conditions
        self.changes = [FIRST, *history.changes]
        self.acked = [change for change in self.changes if change.outcome == ACKED]
        self.protected = [change for change in self.acked if change is FIRST or conditions.protects(change)]
        self.acked_ends = [change.ended for change in self.acked]
        self.protected_ends = [change.ended for change in self.protected]
        self.kinds = {DELETE: Sources(), EMPTY: Sources()}
        for change in self.changes:
            if change.kind in self.kinds and change.outcome != UNMET:
                self.kinds[change.kind].add(change, conditions)
        self.violations = []

    def run(self):
        reads = sorted(self.history.reads, key=lambda read: read.invoked)
        valid = [(read, latest) for read in reads if (latest := self.latest(read))]
        for read, latest in valid:
            self.compare_with_changes(read, *latest)
        self.compare_reads(valid)
        self.compare_cas()
        return self.violations

    def latest(self, read):
        """Returns the latest times of `Sources.latest`, or None after a violation."""
        if read.state in KIND_OF_STATE:
            if found := self.kinds[KIND_OF_STATE[read.state]].latest(read):
                return found
            return self.add(INVALID, read, "the key has never had this state")
        if read.state >= len(self.changes):
            return self.add(INVALID, read, "no client has sent this version")
        change, conditions = self.changes[read.state], self.conditions
        if change.invoked > read.ended:
            return self.add(INVALID, read, "the change was sent later")
        if read.before is not None and read.state >= read.before:
            return self.add(INVALID, read, "the change was sent behind the lookup on the same connection")
        if change.outcome == UNMET:
            return self.add(INVALID, read, "the reply to the change was that its condition was not met")
        return conditions.effect_latest(change), conditions.visible_latest(change), read.state

    def compare_with_changes(self, read, effect, _visible, version):
        """Compares a read with the acknowledged changes that ended before it."""
        tolerated, time = self.conditions.tolerated, self.conditions.overlap_start(read.invoked)
        acked = last_before(self.acked, self.acked_ends, time)
        protected = last_before(self.protected, self.protected_ends, time)
        if effect < protected.invoked:
            self.add_stale(read, version, protected)
        elif effect < acked.invoked:
            if self.conditions.has_loss(acked.invoked, read.ended):
                tolerated["unprotected changes lost with their leader"] += 1
            else:
                self.add_stale(read, version, acked)
        elif effect < last_before(self.protected, self.protected_ends, read.invoked).invoked:
            tolerated["earlier states while two leaders overlap"] += 1
        elif version < acked.version:
            tolerated["changes that took effect after their client's server had ended"] += 1

    def compare_reads(self, valid):
        """Compares the reads between two unplanned leader changes with each other."""
        periods = {}
        for read, latest in valid:
            periods.setdefault(self.conditions.period(read), []).append((read, latest))
        periods.pop(None, None)
        for reads in periods.values():
            observed, ends = Observed(), sorted((read for read, _ in reads), key=lambda read: read.ended)
            added = 0
            for read, (effect, visible, version) in reads:
                while ends[added].ended < read.invoked:
                    observed.add(ends[added])
                    added += 1
                another = observed.another(read.state)
                if another and visible < another.invoked:
                    kind = LATE if self.changes[version].outcome == FAILED else REVERSAL
                    self.add(kind, read, "another state was seen before", another)
                elif another and effect < another.invoked:
                    self.conditions.tolerated["failed changes that became visible while a thread was paused"] += 1

    def compare_cas(self):
        """Compares the CAS values that reads and replies to changes show."""
        shown = [(one.cas, one.state, one) for one in self.history.reads if one.cas]
        for change in self.history.changes:
            if change.cas:
                shown.append((change.cas, IS_EMPTY if change.kind == EMPTY else change.version, change))
        states, values = {}, {}
        for cas, state, one in shown:
            first_state, first = states.setdefault(cas, (state, one))
            if first_state != state:
                self.add(CAS_REUSED, one, f"CAS {cas} belonged to another state", first)
            if isinstance(state, int):
                first_cas, first = values.setdefault(state, (cas, one))
                if first_cas != cas:
                    self.add(TWICE, one, "the version has had another CAS value", first)

    def add_stale(self, read, version, change):
        is_shown = any(one.state == change.version and one.ended < read.invoked for one in self.history.reads)
        kind = LATE if self.changes[version].outcome == FAILED else REVERSAL if is_shown else LOST
        self.add(kind, read, "a later change was acknowledged before", change)

    def add(self, kind, operation, reason, other=None):
        start = self.conditions.start
        lines = [operation.line(start), reason, *([other.line(start)] if other else [])]
        self.violations.append(Violation(kind, operation.invoked, "\n  ".join(lines), self.history))


def last_before(changes, ends, time):
    """Returns the last acknowledged change that ended before a time."""
    return changes[bisect.bisect_left(ends, time) - 1]


def check(history, conditions):
    """Returns the violations in the history of a key, in the order of the rules."""
    return KeyCheck(history, conditions).run()
