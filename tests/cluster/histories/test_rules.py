"""Tests the rules of the checker with handwritten histories: valid ones, and one for each way to break a guarantee."""

import math
import random
from types import SimpleNamespace

import pytest

from history import ACKED, DELETE, EMPTY, FAILED, PENDING, SET, UNKNOWN, UNMET, KeyHistory, TornValue, decode, encode
from rules import REVERSAL, CAS_REUSED, INVALID, LATE, LOST, TWICE, Conditions, LeaderChange, check
from testbed import Records

pytestmark = pytest.mark.larder

# The length of values.
LENGTH = 40


def test_a_killed_process_is_no_survivor():
    """While etcd is down, the `live` key of a killed process remains."""
    node = SimpleNamespace(name="n1")
    records = Records([node])
    records.groups["0"] = ({"in_sync": [{"node": "n1", "boot": "a"}, {"node": "n2", "boot": "b"}]}, 7, 0)
    records.live = {"n1": "a", "n2": "another"}
    assert records.in_sync("0") == ["n1"]
    records.note_end(node)
    assert records.in_sync("0") == []


class Story:
    """Builds the history of one key, in the order of the calls."""

    def __init__(self):
        self.key = KeyHistory("k")

    def change(self, kind, start, end, outcome=ACKED, cas=None):
        change = self.key.begin(kind, "writer", start)
        change.ended, change.outcome, change.cas = end, outcome, cas
        return self

    def set(self, *arguments, **more):
        return self.change(SET, *arguments, **more)

    def empty(self, *arguments, **more):
        return self.change(EMPTY, *arguments, **more)

    def delete(self, *arguments, **more):
        return self.change(DELETE, *arguments, **more)

    def read(self, version, start, end, **more):
        """Adds a read of a version, or of no item."""
        value = None if version is None else self.key.value(self.key.changes[version - 1], LENGTH)
        self.key.add_read(value, client="reader", invoked=start, ended=end, **more)
        return self

    def kinds(self, ack="writes", losses=(), transfers=(), pauses=(), slow=()):
        """Checks the history, and returns the kinds of violations."""
        changes = [LeaderChange("0", *times, is_planned=False) for times in losses]
        changes += [LeaderChange("0", *times, is_planned=True) for times in transfers]
        self.conditions = Conditions(ack, changes, list(pauses), list(slow))
        return [violation.kind for violation in check(self.key, self.conditions)]


ACKS = ["none", "deletes", "writes"]


@pytest.mark.parametrize("ack", ACKS)
def test_reads_of_acknowledged_changes_are_valid(ack):
    story = Story().read(None, 0, 1).set(2, 3, cas=5).read(1, 4, 5, cas=5).set(6, 7).read(2, 8, 9)
    story.delete(10, 11).read(None, 12, 13).empty(14, 15).read(3, 11, 12).read(4, 16, 17)
    assert story.kinds(ack) == []


@pytest.mark.parametrize("outcome", [ACKED, FAILED, UNKNOWN, PENDING])
def test_a_read_during_a_change_may_show_both_states(outcome):
    for seen in (1, 2):
        assert Story().set(0, 1).set(2, 6, outcome).read(seen, 3, 4).kinds() == []
        assert Story().set(0, 1).set(2, 6, outcome).read(1, 3, 4).read(seen, 5, 5.5).kinds() == []
    assert Story().set(0, 1).set(2, 6, outcome).read(1, 6, 7).kinds() == []


@pytest.mark.parametrize("ack", ACKS)
def test_a_lost_change_is_found(ack):
    assert Story().set(0, 1).set(2, 3).read(1, 4, 5).kinds(ack) == [LOST]
    assert Story().set(0, 1).delete(2, 3).read(1, 4, 5).kinds(ack) == [LOST]
    assert Story().set(0, 1).read(None, 4, 5).kinds(ack) == [LOST]


def test_the_loss_of_a_leader_excuses_lost_changes_without_protection():
    lost_set = Story().set(0, 1).set(2, 3).read(1, 6, 7)
    lost_delete = Story().set(0, 1).delete(2, 3).read(1, 6, 7)
    lost_empty = Story().set(0, 1).empty(2, 3).read(1, 6, 7)
    during = [(4, 4.1)]
    assert lost_set.kinds("none", during) == lost_set.kinds("deletes", during) == []
    assert lost_delete.kinds("none", during) == []
    for ack in ("deletes", "writes"):
        assert lost_delete.kinds(ack, during) == lost_empty.kinds(ack, during) == [LOST]
    assert lost_set.kinds("writes", during) == [LOST]
    # A transfer, or the loss of a leader before the change, loses nothing.
    assert lost_set.kinds("deletes", transfers=during) == [LOST]
    assert lost_set.kinds("deletes", [(1.5, 1.6)]) == [LOST]
    assert lost_set.kinds("deletes", [(8, 8.1)]) == [LOST]
    # A lost change leaves an earlier state, but no state from before the last delete.
    story = Story().set(0, 1).delete(2, 3).set(4, 5)
    assert story.read(None, 8, 9).kinds("deletes", [(6, 6.1)]) == []
    assert story.read(1, 10, 11).kinds("deletes", [(6, 6.1)]) == [LOST, REVERSAL]


def test_a_value_that_comes_back_is_found():
    story = Story().set(0, 1).set(2, 3).read(2, 4, 5).read(1, 6, 7)
    assert story.kinds("writes") == [REVERSAL, REVERSAL]
    # Both reads follow the loss of the leader.
    assert Story().set(0, 1).set(2, 3).read(1, 6, 7).read(2, 8, 9).kinds("deletes", [(3.5, 3.6)]) == [REVERSAL]
    # The second read follows the loss of the next leader.
    assert Story().set(0, 1).set(2, 3).read(1, 6, 7).read(2, 9, 10).kinds("deletes", [(3.5, 3.6), (7.5, 7.6)]) == []
    # The change was not acknowledged.
    story = Story().set(0, 1).set(2, 9, PENDING).read(2, 3, 4).read(1, 5, 6)
    assert story.kinds("writes") == [REVERSAL]
    assert story.kinds("writes", [(4.5, 4.6)]) == []


def test_a_failed_change_may_take_effect_before_its_failure_is_reported():
    for failed in (Story.set, Story.delete, Story.empty):
        story = failed(Story().set(0, 1), 2, 3, FAILED)
        seen = None if failed == Story.delete else 2
        assert story.read(seen, 4, 5).read(seen, 6, 7).kinds() == []
        assert failed(Story().set(0, 1), 2, 3, FAILED).read(1, 4, 5).read(1, 6, 7).kinds() == []


def test_a_change_after_its_reported_failure_is_found():
    for failed in (Story.set, Story.delete, Story.empty):
        seen = None if failed == Story.delete else 2
        story = failed(Story().set(0, 1), 2, 3, FAILED).read(1, 4, 5).read(seen, 6, 7)
        assert story.kinds() == story.kinds("deletes") == [LATE]
        # The failed change replaces a later change.
        story = failed(Story().set(0, 1), 2, 3, FAILED).set(4, 5).read(seen, 6, 7)
        assert story.kinds() == story.kinds("deletes") == [LATE]
    # The failed change takes effect after an acknowledged delete.
    story = Story().set(0, 1).set(2, 3, FAILED).delete(4, 5).read(2, 6, 7)
    assert story.kinds("deletes", [(5.5, 5.6)]) == [LATE]


def test_a_paused_thread_excuses_a_late_sight_but_no_late_change():
    late_sight = Story().set(0, 1).set(2, 3, FAILED).read(1, 3.1, 3.2).read(2, 3.3, 3.4)
    assert late_sight.kinds() == []
    assert list(late_sight.conditions.tolerated.values()) == [1]
    story = Story().set(0, 1).set(2, 3, FAILED).read(1, 5.1, 5.2).read(2, 5.3, 5.4)
    assert story.kinds() == [LATE]
    assert story.kinds(pauses=[(2.5, 5)]) == []
    assert story.kinds(pauses=[(3.5, 5)]) == [LATE]
    story = Story().set(0, 1).set(2, 3, FAILED).set(3.1, 3.2).read(2, 3.3, 3.4)
    assert story.kinds(pauses=[(2.5, 5)]) == [LATE]


def test_a_change_may_be_late_if_its_server_was_killed():
    story = Story().set(0, 1).set(2, 3, UNKNOWN).set(4, 4.5).read(3, 4.6, 4.7).read(2, 6, 7)
    assert story.kinds() == []
    assert sum(story.conditions.tolerated.values()) == 1
    assert Story().set(0, 1).set(2, 3, UNKNOWN).set(5.1, 6).read(2, 7, 8).kinds() == [LOST]
    slow = Story().set(0, 1).set(2, 3, UNKNOWN).read(1, 21, 22).read(2, 22.5, 24)
    assert slow.kinds() == [REVERSAL]
    assert slow.kinds(slow=[(-20, -13)]) == [REVERSAL]
    assert slow.kinds(slow=[(-20, -11)]) == slow.kinds(slow=[(4, 30)]) == []
    assert slow.kinds(slow=[(5.5, 30)]) == [REVERSAL]
    assert Story().set(0, 1).set(2, 3, UNKNOWN).read(1, 5.1, 5.2).read(2, 5.3, 5.4).kinds() == [REVERSAL]


def test_two_leaders_may_overlap_for_a_second():
    story = Story().set(0, 1).delete(4.2, 4.3).read(1, 4.9, 5)
    assert story.kinds("deletes") == [LOST]
    assert story.kinds("deletes", [(4, 4.1)]) == []
    assert list(story.conditions.tolerated.values()) == [1]
    story = Story().set(0, 1).delete(4.2, 4.3).read(1, 5.2, 5.3)
    assert story.kinds("deletes", [(4, 4.1)]) == [LOST]
    # The first leader has acknowledged the delete.
    assert Story().set(0, 1).delete(2, 3).read(1, 4.9, 5).kinds("deletes", [(4, 4.1)]) == [LOST]


def test_reads_at_the_loss_of_a_leader_may_show_both_leaders():
    for reads in [(3, 3.5), (3.8, 4.5)], [(4.9, 5), (6, 7)], [(3, 3.5), (6, 7)]:
        first, second = reads
        story = Story().set(0, 1).set(2, 9, PENDING).read(2, *first).read(1, *second)
        assert story.kinds(losses=[(4, 4.1)]) == []
        assert story.kinds() == story.kinds(losses=[(7.1, 7.2)]) == [REVERSAL]


def test_a_read_is_compared_with_the_last_read_of_another_state():
    story = Story().set(0, 1).set(2, 3, FAILED)
    assert story.read(1, 10, 20).read(2, 11, 12).read(2, 21, 22).kinds() == [LATE]
    story = Story().set(0, 1).set(2, 3, FAILED)
    assert story.read(1, 10, 10.5).read(2, 11, 12).read(2, 21, 22).kinds() == [LATE, LATE]


def test_losses_of_leaders_soon_after_each_other_are_one_time_of_uncertainty():
    conditions = Conditions("writes", [LeaderChange("0", 4, 5, False), LeaderChange("1", 4.5, 4.6, False)])
    assert conditions.losses == [(4, 5)]
    story = Story().set(0, 1).set(2, 9, PENDING).read(2, 3, 3.9).read(1, 6.5, 7)
    assert story.kinds(losses=[(4, 5), (4.5, 4.6)]) == []
    assert Story().set(0, 1).set(2, 9, PENDING).read(2, 6.2, 6.3).read(1, 6.5, 7).kinds(losses=[(4, 5)]) == [REVERSAL]


def test_a_read_from_the_future_is_found():
    assert Story().read(None, 0, 1).set(2, 3).read(1, 0, 1).kinds() == [INVALID]
    # The key had no empty value before the read.
    assert Story().empty(2, 3).read(1, 0, 1).kinds() == [INVALID]
    assert Story().set(0, 1).set(2, 3).read(1, 2, 3, before=2).read(2, 2, 3).kinds() == []
    assert Story().set(0, 1).set(2, 3).read(2, 2, 3, before=2).kinds() == [INVALID]
    assert Story().set(0, 1).delete(2, 3).read(None, 2, 3, before=2).kinds() == [LOST]


def test_the_effect_of_a_change_without_its_condition_is_found():
    assert Story().set(0, 1).set(2, 3, UNMET).read(1, 4, 5).kinds() == []
    assert Story().set(0, 1).set(2, 3, UNMET).read(2, 4, 5).kinds() == [INVALID]
    assert Story().set(0, 1).empty(2, 3, UNMET).read(2, 4, 5).kinds() == [INVALID]


def test_a_version_that_no_client_has_sent_is_found():
    story = Story().set(0, 1)
    story.key.add_read(encode("k", 2, LENGTH), client="reader", invoked=2, ended=3)
    assert story.kinds() == [INVALID]


def test_reused_cas_values_are_found():
    assert Story().set(0, 1).read(1, 2, 3, cas=7).set(4, 5).read(2, 6, 7, cas=8).kinds() == []
    assert Story().set(0, 1).read(1, 2, 3, cas=7).set(4, 5).read(2, 6, 7, cas=7).kinds() == [CAS_REUSED]
    assert Story().set(0, 1, cas=7).set(4, 5, cas=7).kinds() == [CAS_REUSED]
    assert Story().empty(0, 1, cas=7).read(1, 2, 3, cas=7).set(4, 5, cas=7).kinds() == [CAS_REUSED]
    # The loss of a leader does not permit the reuse of a CAS value.
    assert Story().set(0, 1, cas=7).set(4, 5, cas=7).kinds("none", [(2, 3)]) == [CAS_REUSED]


def test_a_change_that_was_made_twice_is_found():
    assert Story().set(0, 1).read(1, 2, 3, cas=7).read(1, 4, 5, cas=8).kinds() == [TWICE]
    assert Story().set(0, 1, cas=7).read(1, 4, 5, cas=8).kinds() == [TWICE]


def test_values_carry_their_version():
    for length in (0, 20, 4096):
        value = encode("k", 12, length)
        assert len(value) >= length and decode("k", value) == 12
        with pytest.raises(TornValue):
            decode("j", value)
        with pytest.raises(TornValue):
            decode("k", value[:-1] + b"?")
        with pytest.raises(TornValue):
            decode("k", value + b";")
    for torn in (b"", b"k 1", b"k 1 \xff;", b"1 2;"):
        with pytest.raises(TornValue):
            decode("k", torn)


class Register:
    """A simulated key of a correct server: each change takes effect at a random time of its interval, and a read
    returns a random state of the key during the read. The rules must accept all resulting histories."""

    def __init__(self, seed):
        self.draw = draw = random.Random(seed)
        self.story, self.states, now = Story(), [(-math.inf, None)], 0.0
        for _ in range(60):
            start, now = now + draw.random() / 10, now + 0.1 + draw.random() / 5
            kind = draw.choice([SET, SET, DELETE, EMPTY])
            outcome = draw.choice([ACKED, ACKED, FAILED, UNKNOWN, UNMET])
            self.story.change(kind, start, now, outcome)
            latest = now + (draw.choice([0, 0, 1.9]) if outcome == UNKNOWN else 0)
            if outcome == ACKED or outcome in (FAILED, UNKNOWN) and draw.random() < 0.5:
                version = None if kind == DELETE else len(self.story.key.changes)
                self.states.append((draw.uniform(start, latest), version))
            now += draw.random() / 10
        self.states.sort(key=lambda state: state[0])
        self.end = now

    def state(self, time):
        return [version for since, version in self.states if since <= time][-1]

    def read(self):
        start = self.draw.uniform(0, self.end)
        end = start + self.draw.random() / 5
        self.story.read(self.state(self.draw.uniform(start, end)), start, end)


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_a_correct_server_are_valid(seed):
    register = Register(seed)
    for _ in range(400):
        register.read()
    for ack in ACKS:
        assert register.story.kinds(ack) == []
