//! Delta sync: after a change of leader, members exchange only the items that may differ.
//!
//! A member also records each change that it receives from its leader in its own journals. When
//! member A becomes the leader, A's journals have the keys of all changes that A has and member B
//! may lack. Likewise, B's journals have the keys of all changes that B has and A may lack.
//! Checkpoints give each member the offsets at which these keys start in its own journals:
//!
//! ```text
//! journals of the previous leader   ────────┬─────────┬──────────┬────────▶
//!                                         ends   offset of B  offset of A
//! journals of A, the new leader     ───own────────────────────────────▶ A sends B the states of all keys from here on
//! ```
//! A checkpoint (`ends`, `own`) states: every change that A has stored before `own` is before
//! `ends` in the previous leader's journals. B has all changes before its offset. So if `ends` is
//! not after B's offset, all changes that A has and B lacks are after `own`. The same holds with A
//! and B exchanged: B sends the keys after its own checkpoint, and A replies with the states of
//! these keys. B stores these states even if they are older than its own, because A leads. The
//! previous leader may return as a member. It needs no checkpoints, because the offsets are
//! positions in its own journals.
//!
//! A reader can see a change of an item before the item's key is in a journal. So when the sender
//! starts a checkpoint, the journals may lack keys whose states the sender has already sent. The
//! sender sends `ends` only when all batches that were under way at that time have ended
//! (`Journals::batches_have_ended`).

use crate::frame::Position;
use std::collections::VecDeque;

/// The maximum number of checkpoints that a stream retains. A further checkpoint replaces the
/// oldest.
const CHECKPOINTS_MAX: usize = 256;

/// Offsets in the leader's journals, and the corresponding offsets in the member's own journals.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Checkpoint {
    /// Offsets in the leader's journals. All changes that the member stored before `own` are before
    /// these offsets.
    ends: Vec<u64>,
    /// Offsets in the member's own journals.
    own: Vec<u64>,
}

/// The checkpoints of a stream, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checkpoints {
    checkpoints: VecDeque<Checkpoint>,
    /// The `own` of a checkpoint whose `ends` have not arrived yet.
    open: Option<Vec<u64>>,
}

impl Checkpoints {
    /// Starts a checkpoint at these offsets in the member's own journals.
    pub(crate) fn start(&mut self, own: Vec<u64>) {
        self.open = Some(own);
    }

    /// Completes the open checkpoint with these offsets in the leader's journals. Without an open
    /// checkpoint, does nothing.
    pub(crate) fn complete(&mut self, ends: Vec<u64>) {
        let Some(own) = self.open.take() else { return };
        if self.checkpoints.len() >= CHECKPOINTS_MAX {
            self.checkpoints.pop_front();
        }
        self.checkpoints.push_back(Checkpoint { ends, own });
    }
}

/// The position that a process reached in the stream of its last leader, with the checkpoints of
/// that stream. A delta sync after a change of leader needs both.
#[derive(Clone, Debug)]
pub(crate) struct Lineage {
    position: Position,
    /// The checkpoints of the leader's stream; `None` if this process was the leader.
    checkpoints: Option<Checkpoints>,
}

impl Lineage {
    /// Creates the lineage of a member that has followed a leader up to this position.
    pub(crate) fn followed(position: Position, checkpoints: Checkpoints) -> Self {
        Self { position, checkpoints: Some(checkpoints) }
    }

    /// Creates the lineage of a process that was the leader itself.
    pub(crate) fn led(position: Position) -> Self {
        Self { position, checkpoints: None }
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// Returns the offsets in this process's own journals after which another member may lack
    /// changes. `offsets` are that member's offsets in the leader's journals: it has all changes
    /// before them. Returns `None` if no checkpoint is old enough.
    pub(crate) fn own_since(&self, offsets: &[u64]) -> Option<Vec<u64>> {
        let Some(Checkpoints { checkpoints, .. }) = &self.checkpoints else {
            return Some(offsets.to_vec());
        };
        let offsets = |number: usize| offsets.get(number).copied().unwrap_or_default();
        let is_before = |checkpoint: &&Checkpoint| {
            checkpoint.ends.iter().enumerate().all(|(number, end)| *end <= offsets(number))
        };
        checkpoints.iter().rev().find(is_before).map(|checkpoint| checkpoint.own.clone())
    }
}

/// The state of a member at the start of its leadership. The member's senders need this state to
/// start delta syncs.
#[derive(Clone, Debug)]
pub struct Succession {
    lineage: Lineage,
    /// The number of this member's own flushes at the start of its leadership.
    generation: u64,
}

impl Succession {
    pub(crate) fn new(lineage: Lineage, generation: u64) -> Self {
        Self { lineage, generation }
    }

    /// Returns the position of the new leader in the journals of the previous one.
    pub(crate) fn previous(&self) -> &Position {
        self.lineage.position()
    }

    /// Returns the number of the new leader's flushes at the start of its leadership.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the offsets in the new leader's journals after which a member at this position may
    /// lack changes. Returns `None` if the member needs a full sync.
    pub(crate) fn since(&self, position: &Position) -> Option<Vec<u64>> {
        let before = self.previous();
        let is_same =
            position.incarnation == before.incarnation && position.generation == before.generation;
        self.lineage.own_since(&position.offsets).filter(|_| is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(offsets: &[u64]) -> Position {
        Position { incarnation: 7, generation: 1, offsets: offsets.to_vec() }
    }

    fn followed() -> Lineage {
        let mut checkpoints = Checkpoints::default();
        for at in 1..=3 {
            checkpoints.start(vec![at]);
            checkpoints.complete(vec![10 * at, 5]);
        }
        checkpoints.start(vec![9]);
        Lineage::followed(position(&[35, 5]), checkpoints)
    }

    #[test]
    fn a_delta_starts_at_the_last_checkpoint_that_the_other_member_covers() {
        let lineage = followed();
        assert_eq!(lineage.own_since(&[29, 5]), Some(vec![2]));
        assert_eq!(
            lineage.own_since(&[99, 5]),
            Some(vec![3]),
            "the last checkpoint is not complete"
        );
        assert_eq!(lineage.own_since(&[99, 4]), None);
        assert_eq!(lineage.own_since(&[99]), None, "an unknown journal counts as offset 0");
        assert_eq!(lineage.own_since(&[9, 9]), None);
        assert_eq!(Lineage::led(position(&[50, 50])).own_since(&[3, 4]), Some(vec![3, 4]));
    }

    #[test]
    fn another_leader_or_another_flush_rules_out_a_delta_sync() {
        let succession = Succession::new(followed(), 4);
        assert_eq!(succession.since(&position(&[20, 5])), Some(vec![2]));
        let of =
            |incarnation, generation| Position { incarnation, generation, ..position(&[20, 5]) };
        assert_eq!(succession.since(&of(8, 1)), None);
        assert_eq!(succession.since(&of(7, 2)), None);
    }

    #[test]
    fn the_oldest_checkpoints_are_dropped() {
        let mut checkpoints = Checkpoints::default();
        for at in 0..1000 {
            checkpoints.start(vec![at]);
            checkpoints.complete(vec![at]);
            // Without an open checkpoint, this second call does nothing.
            checkpoints.complete(vec![0]);
        }
        let lineage = Lineage::followed(position(&[1000]), checkpoints);
        assert_eq!(lineage.own_since(&[1000]), Some(vec![999]));
        assert_eq!(lineage.own_since(&[744]), Some(vec![744]));
        assert_eq!(lineage.own_since(&[743]), None);
    }
}
