//! The allocator: free segments, queues of sealed segments, and the choice of the next segment to
//! empty. One lock protects the whole allocator. A write that finds room in an open segment takes
//! the lock only if it changes the dead level of a sealed segment, stores or replaces a large
//! value, evacuates records or grows the index.

use super::layout::SEGMENTS_MIN;
use super::open_segment::Open;
use super::table::{Sequence, Table};
use crate::eviction::lists::Lists;
use crate::eviction::{GhostClock, Kind, Queues, Sealed, Sweep, Victim};
use crate::segment::sync::Ordering;
use std::collections::{BTreeSet, VecDeque};

/// The limit cannot be lowered so far that index, ghosts and tags exceed this percentage of all
/// segments. Index, ghosts and tags do not shrink, and items need the rest.
const INDEX_SHARE_MAX: usize = 60;
/// In a cache with flash, this share replaces `INDEX_SHARE_MAX`, because index words use most of
/// the memory. It also limits the growth of the index.
pub(crate) const INDEX_SHARE_FLASH: usize = 75;

/// The highest dead level of a segment, at which no item is live. A lower level is the length of
/// the dead records in units of 1/35 of a segment's length, rounded down: level 6 starts at 17 %.
pub(crate) const DEAD_LEVELS: usize = 35;

/// Memory that no index word refers to any more. Readers from its epoch or an earlier epoch may
/// still use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetiredMemory {
    /// The last epoch in which readers could find the memory.
    pub(crate) epoch: u64,
    /// The number of the segment, or of the chain's first segment.
    pub(crate) first: u32,
    /// The number of segments.
    pub(crate) segments: usize,
}

/// A sealed segment and the properties that its queue needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueEntry {
    pub(crate) segment: u32,
    /// The dead level; see [`DEAD_LEVELS`].
    pub(crate) dead_level: usize,
    /// The second by which all items of the segment have expired; `None` if some never expire.
    pub(crate) last_expiry: Option<u32>,
}

impl QueueEntry {
    /// Reads the current properties of a segment. The caller has set the segment's state. So a
    /// thread that marks an item dead afterwards sees the state and updates the dead level.
    pub(crate) fn of(table: &Table, segment: u32) -> Self {
        let entry = table.entry(segment);
        let last_expiry = entry.last_expiry().load(Ordering::Relaxed);
        let dead = entry.dead_before_changes();
        let written = entry.written().load(Ordering::Relaxed);
        let dead_level = dead_level(table, dead, written);
        // In `Alloc::expiry`, 0 means no expiry. A segment that was sealed without an item has a
        // last expiry of 0, so 1 is used instead.
        let last_expiry = (last_expiry != u32::MAX).then_some(last_expiry.max(1));
        Self { segment, dead_level, last_expiry }
    }
}

/// Returns a segment's dead level, given the lengths in bytes of its dead records and of all its
/// records.
pub(crate) fn dead_level(table: &Table, dead: u32, written: u32) -> usize {
    if dead >= written {
        return DEAD_LEVELS;
    }
    (dead as usize * DEAD_LEVELS) >> table.layout.segment_shift
}

/// The use of a segment after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestoredUse {
    /// The memory was never touched, or was returned to the system.
    Untouched,
    Free,
    /// The memory is in use, for example for items or the index.
    Taken,
}

/// The allocator: free segments and queues.
#[derive(Debug)]
pub(crate) struct Alloc {
    /// The free segments, as a stack: the last element is taken first. Untouched segments are at
    /// the bottom.
    free: Vec<u32>,
    /// The number of segments at the bottom of `free` whose memory was never touched, or was
    /// returned to the system.
    untouched: usize,
    /// The queues of sealed segments, which determine the order of eviction.
    pub(crate) queues: Queues,
    /// The sealed segments by their dead share: a list for each level.
    dead_levels: Lists<{ DEAD_LEVELS + 1 }>,
    /// The dead level of each segment, plus one; 0 if the segment is not queued.
    dead_level: Vec<u8>,
    /// The sealed segments whose items all expire, as pairs of last expiry and segment number.
    expiries: BTreeSet<(u32, u32)>,
    /// The last expiry of each segment in `expiries`; 0 for other segments.
    expiry: Vec<u32>,
    /// Retired memory that readers may still see, sorted by epoch.
    retired: VecDeque<RetiredMemory>,
    /// The number of segments in `retired`.
    retired_segments: usize,
    /// Open segments of dropped handles.
    pub(crate) orphans: Vec<Open>,
    /// The number of open segments.
    pub(crate) open: usize,
    /// The number of segments that uploads hold.
    pub(crate) uploading: usize,
    /// The number of segments that hold values from flash: values that are being read, or that were
    /// read but not used yet.
    pub(crate) reading: usize,
    /// The number of segments that the index, the ghosts and the tag table use.
    pub(crate) indexing: usize,
    /// The segments above the limit. The memory of each was never touched, was returned to the
    /// system, or was refused by the system. Raising the limit takes segments from this list.
    decommissioned: Vec<u32>,
    /// The limit in segments.
    limit: usize,
    /// The number of segments that are in use or free. After the limit was lowered, this number
    /// exceeds `limit` until enough segments are decommissioned.
    present: usize,
    /// Segments with a lower sequence are flushed. Set to 0 when the oldest segment of every queue
    /// and size class is not flushed.
    flushed_before: Sequence,
    /// The clock by which ghosts age.
    pub(crate) ghosts: GhostClock,
    /// The limit cannot be lowered so far that the index, ghosts and tags use more than this
    /// percentage of all segments.
    pub(crate) index_share_max: usize,
}

impl Alloc {
    /// Returns an allocator of `limit` free segments, which can grow to `segments`.
    pub(crate) fn new(limit: u32, segments: u32, size_exponent: f64) -> Self {
        let present = limit as usize;
        Self {
            free: (0..limit).rev().collect(),
            untouched: present,
            decommissioned: (limit..segments).rev().collect(),
            queues: Queues::new(present, size_exponent),
            dead_levels: Lists::new(present),
            dead_level: vec![0; present],
            expiries: BTreeSet::new(),
            expiry: vec![0; present],
            retired: VecDeque::new(),
            retired_segments: 0,
            orphans: Vec::new(),
            open: 0,
            uploading: 0,
            reading: 0,
            indexing: 0,
            limit: present,
            present,
            flushed_before: 0,
            ghosts: GhostClock::default(),
            index_share_max: INDEX_SHARE_MAX,
        }
    }

    /// Returns an allocator for a region that was used before. `uses` contains the uses of the
    /// first segments. All later segments are untouched. More than `limit` segments may be in use
    /// or free; see [`Alloc::excess`].
    pub(crate) fn restored(
        limit: u32,
        segments: u32,
        size_exponent: f64,
        uses: &[RestoredUse],
        ghosts: GhostClock,
    ) -> Self {
        let of = |wanted: RestoredUse| {
            let segments = (0..segments).zip(uses).filter(move |(_, used)| **used == wanted);
            segments.map(|(segment, _)| segment)
        };
        let mut free: Vec<u32> = of(RestoredUse::Free).collect();
        let touched = free.len() + of(RestoredUse::Taken).count();
        let seen = u32::try_from(uses.len()).expect("segments are counted in 32 bits");
        let mut untouched: Vec<u32> = of(RestoredUse::Untouched).chain(seen..segments).collect();
        let decommissioned =
            untouched.split_off(untouched.len().min((limit as usize).saturating_sub(touched)));
        let mut alloc = Self::new(0, 0, size_exponent);
        alloc.extend(untouched.iter().max().map_or(0, |last| last + 1).max(seen) as usize);
        alloc.untouched = untouched.len();
        alloc.present = touched + untouched.len();
        alloc.limit = limit as usize;
        alloc.decommissioned = decommissioned.into_iter().rev().collect();
        free.reverse();
        alloc.free = untouched.into_iter().rev().chain(free).collect();
        alloc.ghosts = ghosts;
        alloc
    }

    /// Extends the arrays that are indexed by segment number to `segments` elements.
    fn extend(&mut self, segments: usize) {
        self.queues.extend(segments);
        self.dead_levels.extend(segments);
        self.dead_level.resize(segments.max(self.dead_level.len()), 0);
        self.expiry.resize(segments.max(self.expiry.len()), 0);
    }

    /// Decommissions a segment that was just taken and whose memory the system refused.
    /// Decommissions all untouched segments too, except the `kept` that are taken last. Returns the
    /// remaining limit in segments.
    pub(crate) fn refuse(&mut self, segment: u32, kept: usize) -> usize {
        let kept = kept.min(self.untouched);
        let given = self.free.drain(kept..self.untouched);
        self.present -= given.len() + 1;
        self.decommissioned.extend(given);
        self.decommissioned.push(segment);
        self.untouched = kept;
        self.limit = self.limit.min(self.present);
        self.limit
    }

    /// Returns the `count` free segments that will be taken last, or all free segments if there are
    /// fewer.
    pub(crate) fn last_free(&self, count: usize) -> impl Iterator<Item = u32> {
        self.free.iter().take(count).copied()
    }

    /// Takes a free segment if more than `reserve` are free.
    pub(crate) fn take(&mut self, reserve: usize) -> Option<u32> {
        let segment = if self.free.len() > reserve { self.free.pop()? } else { return None };
        self.untouched = self.untouched.min(self.free.len());
        Some(segment)
    }

    /// Takes an untouched segment. Returns `None` if no free segment is untouched, or if at most
    /// `reserve` segments are free.
    pub(crate) fn take_fresh(&mut self, reserve: usize) -> Option<u32> {
        if self.untouched == 0 || self.free.len() <= reserve {
            return None;
        }
        self.untouched -= 1;
        Some(self.free.remove(self.untouched))
    }

    /// Returns whether writes will soon use segments that were never touched. Returns true if at
    /// least one such segment is free, and fewer than two other segments are free or retired.
    pub(crate) fn is_about_to_use_more_memory(&self) -> bool {
        let used = self.free.len() - self.untouched;
        used + self.retired_segments < 2 && self.untouched > 0
    }

    /// Returns the number of free segments whose memory was never touched, or was returned to the
    /// system.
    pub(crate) fn untouched(&self) -> usize {
        self.untouched
    }

    pub(crate) fn give_back(&mut self, segments: &[u32]) {
        strict_assert!(!segments.iter().any(|s| self.free.contains(s)), "freed twice");
        self.free.extend_from_slice(segments);
    }

    /// Returns the number of free segments.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns [`Alloc::reading`] for values that are read from flash, or [`Alloc::uploading`] for
    /// other uploads.
    pub(crate) fn held_by_values(&mut self, is_flash_read: bool) -> &mut usize {
        if is_flash_read { &mut self.reading } else { &mut self.uploading }
    }

    /// Returns the number of retired segments that readers may still see.
    pub(crate) fn retired_segments(&self) -> usize {
        self.retired_segments
    }

    /// Returns the number of segments that are free or retired. Retired segments are free once all
    /// current readers have finished.
    pub(crate) fn free_or_pending(&self) -> usize {
        self.free.len() + self.retired_segments
    }

    /// Adds retired memory. It can be reused once all readers of its epoch have finished.
    pub(crate) fn retire(&mut self, retired: RetiredMemory) {
        strict_assert!(self.retired.back().is_none_or(|last| last.epoch <= retired.epoch));
        self.retired_segments += retired.segments;
        self.retired.push_back(retired);
    }

    /// Returns the epoch whose readers must have finished before more memory is free, or `None` if
    /// no memory is retired.
    pub(crate) fn next_epoch(&self) -> Option<u64> {
        self.retired.front().map(|retired| retired.epoch)
    }

    /// Removes and returns retired memory of the oldest epoch. Returns `None` unless that epoch is
    /// before `oldest`, the oldest epoch of a reader.
    pub(crate) fn take_retired(&mut self, oldest: u64) -> Option<RetiredMemory> {
        self.next_epoch().filter(|&epoch| epoch < oldest)?;
        let retired = self.retired.pop_front()?;
        self.retired_segments -= retired.segments;
        Some(retired)
    }

    /// Returns the number of segments whose memory was touched.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn ever_used(&self) -> usize {
        self.present - self.untouched
    }

    pub(crate) fn used(&self) -> usize {
        self.present - self.free.len()
    }

    /// Returns the lowest possible limit in segments. It depends on index, ghosts and tags, which
    /// do not shrink.
    pub(crate) fn limit_min(&self) -> usize {
        SEGMENTS_MIN.max((self.indexing * 100).div_ceil(self.index_share_max))
    }

    /// Changes the limit in segments. A higher limit adds free segments immediately. For a lower
    /// limit see [`Alloc::excess`].
    pub(crate) fn set_limit(&mut self, segments: usize) {
        self.limit = segments;
        let more = self.limit.saturating_sub(self.present).min(self.decommissioned.len());
        let new = self.decommissioned.split_off(self.decommissioned.len() - more);
        if let Some(last) = new.iter().max() {
            self.extend(*last as usize + 1);
        }
        self.free.splice(0..0, new);
        self.untouched += more;
        self.present += more;
    }

    /// Returns the number of segments that are present above the limit.
    pub(crate) fn excess(&self) -> usize {
        self.present.saturating_sub(self.limit)
    }

    /// Removes a free segment whose memory was returned to the system. If no segments are present
    /// above the limit any more, frees the segment again instead.
    pub(crate) fn decommission(&mut self, segment: u32) {
        if self.excess() == 0 {
            return self.free.push(segment);
        }
        self.decommissioned.push(segment);
        self.present -= 1;
    }

    /// Adds a newly sealed segment to its queue.
    pub(crate) fn enqueue(&mut self, queued: QueueEntry, sealed: Sealed) {
        self.queues.push(queued.segment, sealed);
        self.list(queued);
    }

    /// Puts a segment that could not be emptied back into its queue.
    pub(crate) fn put_back(&mut self, queued: QueueEntry) {
        self.queues.put_back(queued.segment);
        self.list(queued);
    }

    fn list(&mut self, queued: QueueEntry) {
        let QueueEntry { segment, dead_level, last_expiry } = queued;
        self.dead_levels.push_back(dead_level, segment);
        self.dead_level[segment as usize] = u8::try_from(dead_level).expect("few levels") + 1;
        if let Some(at) = last_expiry {
            self.note_expiry(segment, at);
        }
    }

    fn note_expiry(&mut self, segment: u32, at: u32) {
        self.expiries.insert((at, segment));
        self.expiry[segment as usize] = at;
    }

    fn forget_expiry(&mut self, segment: u32) {
        let at = std::mem::take(&mut self.expiry[segment as usize]);
        if at != 0 {
            self.expiries.remove(&(at, segment));
        }
    }

    /// Returns the dead level of a queued segment, or `None` if the segment is not queued.
    fn level_of(&self, segment: u32) -> Option<usize> {
        usize::from(self.dead_level[segment as usize]).checked_sub(1)
    }

    /// Records a segment's new dead level. Has no effect unless the segment is queued.
    pub(crate) fn set_dead_level(&mut self, segment: u32, level: usize) {
        if let Some(old) = self.level_of(segment).filter(|old| *old != level) {
            self.dead_levels.remove(old, segment);
            self.dead_levels.push_back(level, segment);
            self.dead_level[segment as usize] = u8::try_from(level).expect("few levels") + 1;
        }
    }

    fn dequeue(&mut self, segment: u32) -> Option<u32> {
        let level = self.level_of(segment)?;
        self.queues.remove(segment);
        self.dead_levels.remove(level, segment);
        self.dead_level[segment as usize] = 0;
        self.forget_expiry(segment);
        Some(segment)
    }

    /// Records that a flush took effect for all segments with a lower sequence.
    pub(crate) fn note_flush(&mut self, sequence: Sequence) {
        self.flushed_before = sequence;
    }

    /// Takes a segment whose items have all expired by `now` or were all flushed. Returns `None` if
    /// it finds none. Looks for flushed items only in the oldest segment of each queue and size
    /// class. `last_expiry` returns the current last expiry of a segment, which may have risen
    /// since the segment was queued. `sequence` returns the sequence with which a segment was
    /// opened.
    pub(crate) fn take_expired(
        &mut self,
        now: u32,
        last_expiry: impl Fn(u32) -> u32,
        sequence: impl Fn(u32) -> Sequence,
    ) -> Option<u32> {
        while let Some(&(_, segment)) = self.expiries.first().filter(|(at, _)| *at <= now) {
            match last_expiry(segment) {
                later if later <= now => return self.dequeue(segment),
                u32::MAX => self.forget_expiry(segment),
                later => {
                    self.forget_expiry(segment);
                    self.note_expiry(segment, later);
                }
            }
        }
        if self.flushed_before == 0 {
            return None;
        }
        let flushed = self.queues.fronts().find(|s| sequence(*s) < self.flushed_before);
        if flushed.is_none() {
            self.flushed_before = 0;
        }
        self.dequeue(flushed?)
    }

    /// Takes the segment with the highest dead level, if that dead level is at least `level`.
    pub(crate) fn take_dead(&mut self, level: usize) -> Option<u32> {
        self.take_dead_if(level, |_| true)
    }

    /// Takes a segment that has at least this dead level and for which `may` returns true. Tries
    /// only the first segment of each level, from the highest level down.
    pub(crate) fn take_dead_if(&mut self, level: usize, may: impl Fn(u32) -> bool) -> Option<u32> {
        let mut levels = (level..=DEAD_LEVELS).rev();
        let segment = levels.find_map(|level| self.dead_levels.front(level).filter(|s| may(*s)))?;
        self.dequeue(segment)
    }

    /// Takes a segment for which `may` returns true. Tries only the oldest segment of each queue
    /// and size class.
    pub(crate) fn take_front_if(&mut self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let segment = self.queues.fronts().find(|segment| may(*segment))?;
        self.dequeue(segment)
    }

    /// Takes the next segment to evict; `None` if no segment is queued. `hit_bytes` returns the
    /// total length in bytes of a segment's items that were hit since they were written.
    pub(crate) fn take_victim(&mut self, hit_bytes: impl Fn(u32) -> u64) -> Option<Victim> {
        let victim = self.queues.victim(hit_bytes)?;
        self.dequeue(victim.segment)?;
        Some(victim)
    }

    /// Counts evicted items. Returns the buckets whose outdated ghosts the caller has to sweep.
    pub(crate) fn count_evictions(&mut self, evicted: u64, live: u64, buckets: usize) -> Sweep {
        self.ghosts.count_evictions(evicted, live, buckets)
    }

    /// Takes an open segment that a dropped handle has left. The segment is of this kind, has room
    /// for `len` bytes, and has a sequence of at least `floor`. Returns `None` if there is no such
    /// segment.
    pub(crate) fn adopt(&mut self, kind: Kind, len: usize, floor: Sequence) -> Option<Open> {
        let fits = |open: &Open| open.kind == kind && open.has_room(len) && open.sequence >= floor;
        let i = self.orphans.iter().position(fits)?;
        Some(self.orphans.swap_remove(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::Queue;

    fn small() -> Sealed {
        Sealed { queue: Queue::Small, bytes: 1000, items: 10 }
    }

    fn queued(segment: u32) -> QueueEntry {
        QueueEntry { segment, dead_level: 0, last_expiry: None }
    }

    fn alloc() -> Alloc {
        Alloc::new(32, 40, 0.7)
    }

    #[test]
    fn the_segment_with_the_highest_dead_share_is_taken_first() {
        let mut alloc = alloc();
        (0..4).for_each(|segment| alloc.enqueue(queued(segment), small()));
        alloc.set_dead_level(2, 7);
        alloc.set_dead_level(1, 9);
        alloc.set_dead_level(30, 9);
        assert_eq!(alloc.take_dead(8), Some(1));
        assert_eq!(alloc.take_dead(8), None);
        assert_eq!(alloc.take_dead(7), Some(2));
        assert_eq!(alloc.take_victim(|_| 0).map(|victim| victim.segment), Some(0));
        alloc.put_back(QueueEntry { dead_level: 35, ..queued(1) });
        assert_eq!(alloc.take_dead(8), Some(1));
    }

    #[test]
    fn segments_without_live_items_are_taken() {
        let mut alloc = alloc();
        for segment in 0..4 {
            let last_expiry = (segment < 3).then_some(100 + segment);
            alloc.enqueue(QueueEntry { last_expiry, ..queued(segment) }, small());
        }
        let expiries = |segment| [100, 105, u32::MAX, u32::MAX][segment as usize];
        let sequence = |segment| u64::from(segment) + 1;
        assert_eq!(alloc.take_expired(99, expiries, sequence), None);
        assert_eq!(alloc.take_expired(103, expiries, sequence), Some(0));
        assert_eq!(
            alloc.take_expired(103, expiries, sequence),
            None,
            "a touch has moved its expiry"
        );
        assert_eq!(alloc.take_expired(105, expiries, sequence), Some(1));
        alloc.note_flush(4);
        assert_eq!(alloc.take_expired(105, expiries, sequence), Some(2));
        assert_eq!(
            alloc.take_expired(105, expiries, sequence),
            None,
            "the segment was opened after the flush"
        );
    }

    #[test]
    fn retired_memory_waits_for_its_epoch() {
        let mut alloc = alloc();
        let segments = [0, 1].map(|_| alloc.take(0).unwrap());
        for (epoch, first) in [(7, segments[0]), (8, segments[1])] {
            alloc.retire(RetiredMemory { epoch, first, segments: 1 });
        }
        assert_eq!((alloc.free(), alloc.retired_segments(), alloc.free_or_pending()), (30, 2, 32));
        assert!(alloc.take_retired(7).is_none());
        assert_eq!(alloc.take_retired(8).map(|retired| retired.first), Some(segments[0]));
        assert!(alloc.take_retired(8).is_none());
        assert_eq!((alloc.retired_segments(), alloc.next_epoch()), (1, Some(8)));
    }

    #[test]
    fn a_restored_allocator_has_the_free_segments_and_the_limit() {
        use RestoredUse::{Free, Taken, Untouched};
        let uses = [Taken, Free, Untouched, Taken, Free];
        let restored = |limit| Alloc::restored(limit, 10, 0.7, &uses, GhostClock::default());
        let taken =
            |alloc: &mut Alloc| -> Vec<u32> { std::iter::from_fn(|| alloc.take(0)).collect() };
        for (limit, used, excess, order) in [
            (3, 2, 1, &[1, 4][..]),
            (7, 2, 0, &[1, 4, 2, 5, 6]),
            (10, 2, 0, &[1, 4, 2, 5, 6, 7, 8, 9]),
        ] {
            let mut alloc = restored(limit);
            assert_eq!((alloc.used(), alloc.excess()), (used, excess), "{limit}");
            assert_eq!(taken(&mut alloc), order, "{limit}");
            alloc.set_limit(10);
            assert_eq!(taken(&mut alloc).len() + order.len() + used, 10, "{limit}");
        }
    }

    #[test]
    fn memory_that_the_system_refuses_lowers_the_limit() {
        let mut alloc = alloc();
        let taken: Vec<u32> = (0..5).filter_map(|_| alloc.take(0)).collect();
        alloc.give_back(&taken[..1]);
        assert_eq!(alloc.take(0), Some(0));
        assert_eq!(alloc.take(0), Some(5));
        assert_eq!(alloc.refuse(5, 3), 8);
        assert_eq!((alloc.free(), alloc.used(), alloc.excess()), (3, 5, 0));
        alloc.set_limit(40);
        let taken: Vec<u32> = std::iter::from_fn(|| alloc.take(0)).collect();
        assert_eq!(taken, [29, 30, 31].into_iter().chain(5..29).chain(32..40).collect::<Vec<_>>());
        alloc.set_limit(6);
        alloc.give_back(&taken[..1]);
        let segment = alloc.take(0).unwrap();
        assert_eq!(alloc.refuse(segment, 3), 6, "a refusal never raises the limit");
    }

    #[test]
    fn the_reserve_is_not_taken() {
        let mut alloc = alloc();
        assert_eq!((0..40).filter_map(|_| alloc.take(5)).count(), 27);
        assert_eq!(alloc.used(), 27);
    }

    #[test]
    fn segments_that_were_never_used_are_taken_last() {
        let mut alloc = alloc();
        let taken: Vec<u32> = (0..16).filter_map(|_| alloc.take(0)).collect();
        assert!(alloc.is_about_to_use_more_memory());
        alloc.give_back(&taken[7..9]);
        alloc.set_limit(40);
        assert!(!alloc.is_about_to_use_more_memory(), "two free segments were used before");
        let next = [0; 3].map(|reserve| alloc.take(reserve).unwrap());
        assert_eq!(next, [8, 7, 16]);
        alloc.give_back(&[7]);
        assert_eq!(alloc.take_fresh(0), Some(17), "although a used segment is free");
    }

    #[test]
    fn returned_memory_counts_as_untouched() {
        let mut alloc = alloc();
        let taken: Vec<u32> = (0..10).filter_map(|_| alloc.take(0)).collect();
        alloc.set_limit(16);
        while alloc.excess() > 0 {
            let segment = alloc.take(0).unwrap();
            alloc.decommission(segment);
        }
        assert_eq!(alloc.untouched(), 6);
        alloc.set_limit(32);
        assert_eq!(alloc.untouched(), 22);
        assert!(alloc.is_about_to_use_more_memory());
        alloc.give_back(&taken);
        assert_eq!((alloc.untouched(), alloc.is_about_to_use_more_memory()), (22, false));
    }

    #[test]
    fn the_limit_grows_at_once_and_shrinks_as_segments_are_decommissioned() {
        let mut alloc = alloc();
        alloc.set_limit(100);
        assert_eq!((alloc.free(), alloc.excess()), (40, 0));
        alloc.enqueue(queued(39), small());
        assert_eq!(alloc.take_dead(0), Some(39));
        alloc.set_limit(30);
        assert_eq!((alloc.free(), alloc.excess()), (40, 10));
        while alloc.excess() > 0 {
            let segment = alloc.take(0).unwrap();
            alloc.decommission(segment);
        }
        assert_eq!((alloc.free(), alloc.used()), (30, 0));
        alloc.set_limit(31);
        assert_eq!(alloc.free(), 31);
    }

    /// Returns the sorted durations of single choices among `segments` segments. Alternately takes
    /// a segment with expired items, a dead segment and the next victim, and queues each segment
    /// again.
    #[expect(clippy::disallowed_methods, reason = "this test measures time")]
    fn choices(segments: u32) -> Vec<std::time::Duration> {
        let mut alloc = Alloc::new(segments, segments, 0.7);
        let seal = |alloc: &mut Alloc, segment: u32, age: u32| {
            let queue = if segment.is_multiple_of(4) { Queue::Small } else { Queue::Main };
            let sealed = Sealed { queue, bytes: 1 << 20, items: 1 << (segment % 13) };
            let last_expiry = segment.is_multiple_of(3).then_some(1000 + age);
            alloc.enqueue(
                QueueEntry { segment, dead_level: segment as usize % 6, last_expiry },
                sealed,
            );
        };
        (0..segments).for_each(|segment| seal(&mut alloc, segment, segment));
        let choose = |i: u32| {
            let begun = std::time::Instant::now();
            let segment = match i % 3 {
                0 => alloc.take_expired(1000 + i, |_| 0, |_| 1),
                1 => alloc.take_dead(3),
                _ => alloc.take_victim(|_| 1000).map(|victim| victim.segment),
            };
            let segment = segment.or_else(|| alloc.take_dead(0)).expect("all segments are queued");
            seal(&mut alloc, segment, segments + i);
            alloc.set_dead_level(segment, 5);
            begun.elapsed()
        };
        let mut times: Vec<_> = (0..30_000).map(choose).collect();
        times.sort_unstable();
        times
    }

    /// Checks only the median, because other load on the machine affects the longest times.
    #[test]
    fn a_choice_takes_about_the_same_time_among_a_thousand_segments_and_among_128_thousand() {
        let rounds = (0..5).map(|_| [1 << 10, 1 << 17].map(choices));
        let ratios = rounds.map(|[few, many]| {
            let of =
                |times: &[std::time::Duration], percent: usize| times[times.len() * percent / 100];
            let at = |percent: usize| {
                of(&many, percent).as_nanos() as f64 / of(&few, percent).as_nanos() as f64
            };
            (at(50), at(99))
        });
        let mut ratios: Vec<_> = ratios.collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(ratios[2].0 < 4.0, "median and 99th percentile: {ratios:.2?}");
    }
}
