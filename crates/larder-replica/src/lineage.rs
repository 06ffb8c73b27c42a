//! How a member goes on with a new leader of its group without a copy of everything.
//!
//! Members store what a leader sends through journals of their own. So when one of them leads, its journals have the
//! keys of all that it knows and another member may not; and the other one's journals have the keys of all that this
//! one may not know. Both look up from where in their own journals that is:
//!
//! ```text
//! journals of the leader that is gone   ────────┬─────────┬──────────┬────────▶
//!                                             ends   reach of B   reach of A
//! journals of A, which leads now        ───────own────────────────────────────▶ all from here on is sent to B
//! ```
//! B has everything up to its reach. Of what A has stored before the mark `own`, nothing was changed at `ends` or
//! later, so whatever A knows and B does not is behind `own`. The same holds with A and B exchanged: B names the keys
//! behind its own mark, and A sends the states of these, too, which B stores even if they are older. The leader that
//! is gone may also come back as a member: its journals are those that the reaches are in.
//!
//! An item shows a change before its key is in a journal. So a mark is good for use only when all batches have ended
//! that were under way when it was made (`Journals::settle`): `ends` is where the journals are then.

use crate::frame::Position;
use std::collections::VecDeque;

/// The most marks that are kept. The oldest ones go first.
const MARKS_MAX: usize = 256;

/// A place in a member's own journals.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// What was stored before this place was changed before these offsets in the leader's journals.
    ends: Vec<u64>,
    own: Vec<u64>,
}

/// The marks of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    marks: VecDeque<Mark>,
    /// The place in the own journals whose end in the leader's journals is not known yet.
    open: Option<Vec<u64>>,
}

impl Marks {
    /// Begins a mark at this place in the own journals.
    pub(crate) fn begin(&mut self, own: Vec<u64>) {
        self.open = Some(own);
    }

    /// Ends the mark that was begun last.
    pub(crate) fn end(&mut self, ends: Vec<u64>) {
        let Some(own) = self.open.take() else { return };
        if self.marks.len() >= MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark { ends, own });
    }
}

/// What a process has of the changes that its last leader has made, or it itself.
#[derive(Clone, Debug)]
pub(crate) struct Lineage {
    position: Position,
    /// `None` for the leader itself.
    marks: Option<Marks>,
}

impl Lineage {
    /// Of a member that has followed a leader up to this position.
    pub(crate) fn followed(position: Position, marks: Marks) -> Self {
        Self { position, marks: Some(marks) }
    }

    /// Of a process that has led.
    pub(crate) fn led(position: Position) -> Self {
        Self { position, marks: None }
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// Where the keys begin in this process's own journals that somebody may not know who has everything up to `reach`
    /// in the journals of the leader. `None` if that is too long ago.
    pub(crate) fn own_since(&self, reach: &[u64]) -> Option<Vec<u64>> {
        let Some(Marks { marks, .. }) = &self.marks else { return Some(reach.to_vec()) };
        let reach = |number: usize| reach.get(number).copied().unwrap_or_default();
        let is_before =
            |mark: &&Mark| mark.ends.iter().enumerate().all(|(number, end)| *end <= reach(number));
        marks.iter().rev().find(is_before).map(|mark| mark.own.clone())
    }
}

/// How a member has come to lead: what it has sent and stored until then, and where its own changes begin.
#[derive(Clone, Debug)]
pub struct Succession {
    /// What it has of the leader before it.
    lineage: Lineage,
    /// The number of its own last flush.
    generation: u64,
}

impl Succession {
    pub(crate) fn new(lineage: Lineage, generation: u64) -> Self {
        Self { lineage, generation }
    }

    /// The leader before this one, and how far it was followed.
    pub(crate) fn before(&self) -> &Position {
        self.lineage.position()
    }

    /// The number of the new leader's last flush when it began to lead.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Where the keys begin in the new leader's journals that a member at this position may not know. `None` if the
    /// member has to copy everything.
    pub(crate) fn since(&self, position: &Position) -> Option<Vec<u64>> {
        let before = self.before();
        let is_same = position.boot == before.boot && position.generation == before.generation;
        self.lineage.own_since(&position.offsets).filter(|_| is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(offsets: &[u64]) -> Position {
        Position { boot: 7, generation: 1, offsets: offsets.to_vec() }
    }

    fn followed() -> Lineage {
        let mut marks = Marks::default();
        for at in 1..=3 {
            marks.begin(vec![at]);
            marks.end(vec![10 * at, 5]);
        }
        marks.begin(vec![9]);
        Lineage::followed(position(&[35, 5]), marks)
    }

    #[test]
    fn keys_begin_at_the_last_mark_that_the_other_one_has_everything_of() {
        let lineage = followed();
        assert_eq!(lineage.own_since(&[29, 5]), Some(vec![2]));
        assert_eq!(lineage.own_since(&[99, 5]), Some(vec![3]), "the last mark is not complete");
        assert_eq!(lineage.own_since(&[99, 4]), None);
        assert_eq!(lineage.own_since(&[99]), None, "it has not seen the second journal");
        assert_eq!(lineage.own_since(&[9, 9]), None);
        assert_eq!(Lineage::led(position(&[50, 50])).own_since(&[3, 4]), Some(vec![3, 4]));
    }

    #[test]
    fn the_same_leader_and_flushes_have_to_have_been_followed() {
        let succession = Succession::new(followed(), 4);
        assert_eq!(succession.since(&position(&[20, 5])), Some(vec![2]));
        let of = |boot, generation| Position { boot, generation, ..position(&[20, 5]) };
        assert_eq!(succession.since(&of(8, 1)), None);
        assert_eq!(succession.since(&of(7, 2)), None);
    }

    #[test]
    fn old_marks_go_first() {
        let mut marks = Marks::default();
        for at in 0..1000 {
            marks.begin(vec![at]);
            marks.end(vec![at]);
            // Only the first of them counts.
            marks.end(vec![0]);
        }
        let lineage = Lineage::followed(position(&[1000]), marks);
        assert_eq!(lineage.own_since(&[1000]), Some(vec![999]));
        assert_eq!(lineage.own_since(&[744]), Some(vec![744]));
        assert_eq!(lineage.own_since(&[743]), None);
    }
}
