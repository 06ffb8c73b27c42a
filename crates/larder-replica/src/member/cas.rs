//! The CAS values that a group's leaders draw. Clients compare these values, so two leaders must
//! not give a key the same value. Values must also stay low, because some clients keep only 32
//! bits.
//!
//! ```text
//! record       cas: [from, to)       each leader has a range of its own, in the record that names it
//! election     from = the end of all ranges that the candidate knows of
//! transfer     from = the counter of the old leader, which has stopped drawing
//! reservation  a leader with less than half of its range left moves `to` up
//! ```
//! Every change of the record is a compare-and-swap, so ranges are disjoint. While the coordinator
//! is unreachable, a leader offers a higher end in its heartbeats. The leader may draw values up to
//! that end once all other members in sync have acknowledged it, because a member starts its own
//! range above every end that it has read or received. A leader without other members in sync needs
//! no acknowledgement.

use crate::group::{CAS_END, CAS_RANGE_LEN_MIN, CasRange, Process};
use crate::time::Millis;
use std::collections::BTreeMap;
use std::ops::Range;

/// The interval between samples of the CAS counter. The draw rate is measured over the last one to
/// two intervals.
const SAMPLE_INTERVAL: Millis = 30_000;
/// A reservation covers this many times the counted draws. At a steady rate, a reservation lasts
/// five to ten minutes.
const SAMPLES_AHEAD: u64 = 10;

/// The CAS values that this member may draw while it leads, and the state from which it computes
/// further ranges.
#[derive(Debug, Default)]
pub(crate) struct CasReserve {
    /// The lowest value that this process had not drawn at the last call to
    /// [`CasReserve::note_next`].
    next: u64,
    /// The highest range end that this member has read from a record or received in a heartbeat.
    highest_end: u64,
    /// The values that this leader may draw; empty if this member does not lead.
    values: Range<u64>,
    /// Once this leader has reserved enough values above this value, it draws no value below this
    /// value. 0 if there is no such limit.
    floor: u64,
    /// Maps each member to the highest end that it has acknowledged to this leader.
    acknowledged: BTreeMap<Process, u64>,
    /// The last two samples, the older one first: the time, and the first value not drawn at that
    /// time.
    samples: [(Millis, u64); 2],
}

impl CasReserve {
    /// Records the first value that this process has not drawn. Takes a sample if one is due.
    pub(crate) fn note_next(&mut self, now: Millis, next: u64) {
        self.next = next;
        let [_, last] = self.samples;
        if now.saturating_sub(last.0) >= SAMPLE_INTERVAL {
            self.samples = [last, (now, self.first_left())];
        }
    }

    /// Records the end of a CAS range of this or another leader.
    pub(crate) fn note_end(&mut self, end: u64) {
        self.highest_end = self.highest_end.max(end);
    }

    /// Starts a leadership with these values.
    pub(crate) fn start_leading(&mut self, now: Millis, range: CasRange) {
        (self.values, self.floor) = (range.from..range.to, 0);
        self.acknowledged.clear();
        self.samples = [(now, self.first_left()); 2];
    }

    /// Ends the leadership.
    pub(crate) fn stop_leading(&mut self) {
        (self.values, self.floor) = (0..0, 0);
        self.acknowledged.clear();
    }

    /// Returns the values that this leader may draw.
    pub(crate) fn values(&self) -> Range<u64> {
        self.values.clone()
    }

    /// Returns whether this leader has drawn all of its values.
    pub(crate) fn is_used_up(&self) -> bool {
        self.first_left() >= self.values.end
    }

    /// Returns the first value that this leader may still draw.
    fn first_left(&self) -> u64 {
        self.next.max(self.values.start)
    }

    /// Returns the length of the next reservation, based on the draw rate.
    fn len(&self) -> u64 {
        let draws = self.first_left().saturating_sub(self.samples[0].1);
        draws.saturating_mul(SAMPLES_AHEAD).max(CAS_RANGE_LEN_MIN)
    }

    /// Returns the end that this leader should reserve. It exceeds the current end if less than
    /// half of a reservation is left.
    fn wanted_end(&self) -> u64 {
        let (start, len, end) = (self.first_left().max(self.floor), self.len(), self.values.end);
        let wanted =
            if end.saturating_sub(start) < len / 2 { start.saturating_add(len) } else { end };
        wanted.min(CAS_END).max(end)
    }

    /// Returns the range for a record in which this member becomes the leader.
    pub(crate) fn election_range(&self) -> CasRange {
        CasRange::starting_at(self.highest_end.max(self.next))
    }

    /// Returns the range for a record in which this leader stays the leader. `current` is its range
    /// in the current record.
    pub(crate) fn kept_range(&self, current: CasRange) -> CasRange {
        CasRange { to: current.to.max(self.wanted_end()), ..current }
    }

    /// Returns the next leader's range for the record of a leadership transfer. With `continues`,
    /// this leader draws values while the transfer is pending, and the next leader's range excludes
    /// them.
    pub(crate) fn transfer_range(&self, continues: bool) -> CasRange {
        let from = if continues { self.values.end } else { self.first_left() };
        let range = CasRange::starting_at(from);
        let to = from.saturating_add(self.len()).min(CAS_END).max(self.values.end);
        CasRange { to, ..range }
    }

    /// Makes this leader draw only values of at least `floor` once it has reserved enough such
    /// values. Returns whether it does so already.
    pub(crate) fn raise(&mut self, floor: u64) -> bool {
        self.floor = self.floor.max(floor);
        self.apply_floor();
        self.first_left() >= floor
    }

    /// Extends this leader's values up to `end`.
    pub(crate) fn extend(&mut self, end: u64) {
        self.values.end = self.values.end.max(end);
        self.note_end(self.values.end);
        self.apply_floor();
    }

    /// Moves the start of the values to the floor if enough values are reserved above it.
    fn apply_floor(&mut self) {
        let left = self.values.end.saturating_sub(self.floor);
        if self.first_left() < self.floor && left >= CAS_RANGE_LEN_MIN / 2 {
            self.values.start = self.floor;
            // Skipped values must not count as draws.
            self.samples.iter_mut().for_each(|(_, next)| *next = (*next).max(self.floor));
        }
    }

    /// Returns the end that this leader sends in heartbeats. With `offers`, the end may exceed the
    /// end of the reserved values.
    pub(crate) fn heartbeat_end(&self, offers: bool) -> u64 {
        if offers { self.wanted_end() } else { self.values.end }
    }

    /// Records that a member has acknowledged a heartbeat with this range end.
    pub(crate) fn acknowledge(&mut self, member: &Process, end: u64) {
        let known = self.acknowledged.entry(member.clone()).or_default();
        *known = (*known).max(end);
    }

    /// Extends the values up to the lowest end that these members have acknowledged. Without
    /// members, extends the values only if `is_alone_in_doubt` is true.
    pub(crate) fn extend_by<'p>(
        &mut self,
        members: impl Iterator<Item = &'p Process>,
        is_alone_in_doubt: bool,
    ) {
        let ends = members.map(|member| self.acknowledged.get(member).copied().unwrap_or(0));
        match ends.min() {
            Some(end) if end > self.values.end => self.extend(end),
            None if is_alone_in_doubt => self.extend(self.wanted_end()),
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: u64 = CAS_RANGE_LEN_MIN;

    fn leader(range: CasRange) -> CasReserve {
        let mut reserve = CasReserve::default();
        reserve.start_leading(0, range);
        reserve
    }

    #[test]
    fn a_leader_reserves_more_when_half_is_left() {
        let range = CasRange::starting_at(1);
        let mut reserve = leader(range);
        reserve.note_next(10, 100_001);
        assert_eq!(reserve.kept_range(range), range);
        // The draws of the first milliseconds count as the draws of a whole interval.
        reserve.note_next(10, 300_001);
        let more = CasRange { from: 1, to: 300_001 + 3_000_000 };
        assert_eq!(reserve.kept_range(range), more);
        assert_eq!(reserve.kept_range(more), more, "it is reserved, but not confirmed");
        reserve.extend(more.to);
        assert_eq!(reserve.kept_range(more), more);
        assert_eq!(reserve.values(), 1..more.to);
        // After a minute without draws, the next reservation is short.
        for minute in 1..4 {
            reserve.note_next(minute * 30_000, more.to - 9);
        }
        assert_eq!(reserve.kept_range(more).to, more.to - 9 + MIN);
        assert!(!reserve.is_used_up());
        reserve.note_next(100_000, more.to);
        assert!(reserve.is_used_up());
        assert_eq!(leader(CasRange { from: 1, to: CAS_END }).kept_range(range).to, CAS_END);
    }

    #[test]
    fn a_new_leader_starts_above_all_that_is_known() {
        let mut reserve = CasReserve::default();
        assert_eq!(reserve.election_range(), CasRange { from: 1, to: 1 + MIN });
        reserve.note_next(1, 70);
        assert_eq!(reserve.election_range().from, 70);
        reserve.note_end(900);
        reserve.note_end(800);
        assert_eq!(reserve.election_range(), CasRange::starting_at(900));
        let mut reserve = leader(CasRange { from: 1, to: 1000 });
        reserve.note_next(1, 400);
        assert_eq!(reserve.transfer_range(false), CasRange::starting_at(400));
        assert_eq!(reserve.transfer_range(true), CasRange::starting_at(1000));
        reserve.extend(9 * MIN);
        assert_eq!(reserve.transfer_range(false), CasRange { from: 400, to: 9 * MIN });
    }

    #[test]
    fn an_importer_draws_above_the_exporter_once_it_has_reserved_values() {
        let range = CasRange::starting_at(1);
        let mut reserve = leader(range);
        reserve.note_next(1, 50);
        assert!(reserve.raise(50), "it draws above 50 already");
        assert!(!reserve.raise(5 * MIN));
        assert_eq!(reserve.values(), 1..range.to, "it draws on while the values are reserved");
        let more = reserve.kept_range(range);
        assert_eq!(more, CasRange { from: 1, to: 6 * MIN });
        reserve.extend(more.to);
        assert!(reserve.raise(5 * MIN));
        assert_eq!(reserve.values(), 5 * MIN..6 * MIN);
        assert_eq!(reserve.kept_range(more), more, "skipped values are no draws");
        // The rest of the range contains enough values, so `raise` succeeds at once.
        assert!(reserve.raise(5 * MIN + 7));
    }

    #[test]
    fn members_extend_the_values_together() {
        let [a, b] = ["a", "b"].map(|node| Process { node: node.to_owned(), incarnation: 1 });
        let mut reserve = leader(CasRange { from: 1, to: 100 });
        let offer = reserve.heartbeat_end(true);
        assert_eq!((offer, reserve.heartbeat_end(false)), (1 + MIN, 100));
        reserve.acknowledge(&a, offer);
        reserve.extend_by([&a, &b].into_iter(), true);
        assert_eq!(reserve.values(), 1..100, "one member is missing");
        reserve.acknowledge(&b, offer - 1);
        reserve.extend_by([&a, &b].into_iter(), true);
        assert_eq!(reserve.values(), 1..offer - 1);
        let range = CasRange { from: 1, to: 100 };
        assert_eq!(reserve.kept_range(range).to, offer - 1, "the next record contains the end");
        let mut alone = leader(range);
        alone.extend_by([].into_iter(), false);
        assert_eq!(alone.values(), 1..100);
        alone.extend_by([].into_iter(), true);
        assert_eq!(alone.values(), 1..1 + MIN);
    }

    #[test]
    fn invalid_bounds_are_detected() {
        for (from, to, is_valid) in [
            (1, 1, true),
            (1, CAS_END, true),
            (0, 9, false),
            (9, 8, false),
            (9, CAS_END + 1, false),
        ] {
            assert_eq!(CasRange { from, to }.is_valid(), is_valid, "{from} to {to}");
        }
        assert!(CasRange::starting_at(u64::MAX).is_valid());
    }
}
