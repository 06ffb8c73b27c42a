//! Maintenance: the search for items that are no longer valid, a few at a time.
//!
//! Each handle visits all segments, one after another. It reads the records of a segment if an item
//! in the segment may have expired, or if a tag of an item may have been dropped, since the last
//! search. The handle also searches its own open segments. After a flush, or after an operator has
//! requested a search, the handle also reads flushed segments once. The number of segments and
//! records of one step is bounded, so that requests do not wait long for the step.

use crate::engine::Liveness;
use crate::segment::cache::shared::Shared;
use crate::segment::handle::state::{Handle, SegmentWalk, liveness};
use crate::segment::item::header::State;
use crate::segment::item::record::Record;
use crate::segment::item::witness::Witness;
use crate::segment::memory::open_segment::Open;
use crate::segment::memory::table::SegmentState;
use crate::segment::sync::{Ordering, fence};
use crate::{Expiry, Seconds};
use std::sync::Arc;

/// The maximum number of records that one step reads.
const RECORDS_MAX: usize = 256;
/// The maximum number of segments that one step visits.
const SEGMENTS_MAX: usize = 1024;
/// The pause between two searches of a segment is the time since the segment was opened, divided by
/// this number. Long-lived items therefore cost little work, and few expired items stay undetected.
const PAUSE_PART: u32 = 16;
/// The longest pause between two searches of a segment, in seconds.
const PAUSE_MAX: u32 = 300;

impl Handle {
    /// Returns whether a flush or an operator has requested a search that this handle has not
    /// completed.
    pub(crate) fn is_search_requested(&self) -> bool {
        self.crawl.at_once || self.shared.crawls.load(Ordering::Relaxed) != self.crawl.begun
    }

    /// Does one step of the search. Returns true if there is more to do now.
    pub(crate) fn expiry_step(&mut self) -> bool {
        let crawls = self.shared.crawls.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.crawl.begun, crawls) != crawls {
            (self.crawl.segment, self.crawl.at_once) = (0, true);
        }
        if let Some(walk) = self.crawl.walk.take() {
            self.walk_on_segment(walk);
            return true;
        }
        let segments = self.shared.segments_seen();
        let segments = u32::try_from(segments).expect("segments are counted in 32 bits");
        let end = segments.min(
            self.crawl.segment + u32::try_from(SEGMENTS_MAX).expect("SEGMENTS_MAX fits 32 bits"),
        );
        for segment in self.crawl.segment..end {
            if self.is_due(segment) {
                self.crawl.segment = segment + 1;
                let sequence = self.sequence_of(segment);
                let at = self.shared.table().layout.start(segment);
                self.begin_walk(segment);
                self.walk_on_segment(SegmentWalk { segment, sequence, at, first_expiry: u32::MAX });
                return true;
            }
        }
        self.crawl.segment = end;
        if end == segments {
            (self.crawl.segment, self.crawl.at_once) = (0, false);
            self.shared.seal_expired_orphans(self.now.secs);
        }
        end < segments
    }

    /// Starts the search of a segment, and resets the segment's earliest expiry. An expiry that is
    /// noted from now on counts, even if the search has already passed its item.
    fn begin_walk(&mut self, segment: u32) {
        let (shared, writer) = self.writer();
        writer.handle_shared.block.note_searched(shared.table(), segment);
        let entry = shared.table().entry(segment);
        entry.first_expiry().store(u32::MAX, Ordering::Relaxed);
        entry.begin_tag_search(shared.tag_drops());
        fence(Ordering::SeqCst);
        // Makes the handle note the expiry of its next item in the segment again.
        let own = writer.writing.open.iter_mut().find(|open| open.segment == segment);
        if let Some(open) = own {
            open.noted = None;
        }
    }

    fn sequence_of(&self, segment: u32) -> u64 {
        self.shared.table().entry(segment).sequence().load(Ordering::Acquire)
    }

    fn is_due(&mut self, segment: u32) -> bool {
        let entry = self.shared.table().entry(segment);
        let may_have = entry.first_expiry().load(Ordering::Relaxed) <= self.now.secs.0
            || entry.may_have_dropped_tags(self.shared.tag_drops())
            || self.crawl.at_once && self.shared.table().header_page().is_flushed(entry);
        let paused = entry.next_crawl().load(Ordering::Relaxed) > self.now.secs.0;
        if !may_have || paused && !self.crawl.at_once {
            return false;
        }
        entry.is(SegmentState::Sealed) || self.written_end(segment).is_some()
    }

    /// Returns the end of a segment's records, or `None` if this handle must not search the
    /// segment. A handle may search sealed segments and its own open segments.
    fn written_end(&mut self, segment: u32) -> Option<usize> {
        let (shared, writer) = self.writer();
        let own = writer.writing.open.iter().find(|open| open.segment == segment);
        let entry = shared.table().entry(segment);
        own.map(|open| open.at).or_else(|| {
            let written = entry.written().load(Ordering::Relaxed) as usize;
            let is_sealed = entry.is(SegmentState::Sealed);
            is_sealed.then(|| shared.table().layout.start(segment) + written)
        })
    }

    /// Reads the next records of a segment, and removes the items that are no longer valid. Another
    /// handle may empty the segment at the same time: the pin protects its bytes, and the index
    /// determines which records are live.
    fn walk_on_segment(&mut self, mut walk: SegmentWalk) {
        // The pin starts before the check that the segment is in use, and ends after the last
        // record was read.
        let was_in_batch = self.pin.is_in_batch();
        self.pin.begin_batch(&self.shared.epoch);
        if let Some(end) = self.written_end(walk.segment)
            && self.sequence_of(walk.segment) == walk.sequence
        {
            let shared = Arc::clone(&self.shared);
            self.pinned_walk(&shared, &mut walk, end);
            if walk.at < end {
                self.crawl.walk = Some(walk);
            } else {
                self.note_walk(&walk);
            }
        }
        if !was_in_batch {
            self.pin.end_batch();
        }
    }

    fn pinned_walk(&mut self, shared: &Arc<Shared>, walk: &mut SegmentWalk, end: usize) {
        let (table, cas) = (shared.table(), shared.config.cas);
        let now = self.now;
        for _ in 0..RECORDS_MAX {
            if walk.at >= end {
                return;
            }
            let (expiry, dead_hash, len) = self.pinned(|shared, pinned, _| {
                let record = Record::at(table, walk.at, cas, Witness::pinned(pinned));
                let is_removed = record.header.has(State::Dead);
                // Only the header of a removed record is read, because a new record may be
                // overwriting the rest right now.
                let expiry = if is_removed { Expiry::Never } else { record.expiry() };
                let is_dead = !is_removed && liveness(shared, &record, now) != Liveness::Live;
                (expiry, is_dead.then(|| shared.hash(record.key())), record.len())
            });
            let left = match dead_hash {
                Some(hash) => self.expire(shared, walk.at, hash),
                None => expiry.second().map(|at| at.0),
            };
            walk.first_expiry = walk.first_expiry.min(left.unwrap_or(u32::MAX));
            walk.at += len;
        }
    }

    /// Removes an item that is no longer valid, and returns `None`. If the item is valid after all,
    /// returns the second of its expiry, or `None` if it never expires.
    fn expire(&mut self, shared: &Arc<Shared>, offset: usize, hash: u64) -> Option<u32> {
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let locked_slot = stripe.find(|word| word.offset() == offset)?;
        let record = shared.record(locked_slot.word, Witness::locked(&stripe));
        if liveness(shared, &record, writer.now) != Liveness::Live {
            writer.count_reclaimed(shared, &record, true);
            writer.remove(shared, &stripe, &locked_slot, &record);
            return None;
        }
        record.expiry().second().map(|at| at.0)
    }

    /// Stores the segment's next expiry and the time of its next search. The caller calls this
    /// function after the last record of the segment.
    fn note_walk(&self, walk: &SegmentWalk) {
        let entry = self.shared.table().entry(walk.segment);
        let age = self.now.secs.0.saturating_sub(entry.base().0);
        let pause = (age / PAUSE_PART).clamp(1, PAUSE_MAX);
        entry.next_crawl().store(self.now.secs.0 + pause, Ordering::Relaxed);
        entry.first_expiry().fetch_min(walk.first_expiry, Ordering::Relaxed);
    }

    /// Abandons the search of a segment, so that other handles can start the search again.
    pub(crate) fn abandon_walk(&mut self) {
        if let Some(walk) = self.crawl.walk.take() {
            let entry = self.shared.table().entry(walk.segment);
            entry.first_expiry().fetch_min(self.now.secs.0, Ordering::Relaxed);
            entry.redo_tag_search();
        }
    }
}

impl Shared {
    /// Seals an open segment of a dropped handle if an item in the segment may have expired or been
    /// flushed, or if a tag of an item may have been dropped. Other handles search only sealed
    /// segments.
    fn seal_expired_orphans(&self, now: Seconds) {
        let has_ended = |open: &mut Open| {
            let entry = self.table().entry(open.segment);
            entry.first_expiry().load(Ordering::Relaxed) <= now.0
                || entry.may_have_dropped_tags(self.tag_drops())
                || self.table().header_page().is_flushed(entry)
        };
        let ended: Vec<Open> = self.alloc().orphans.extract_if(.., has_ended).collect();
        ended.iter().for_each(|open| self.seal(open));
    }
}
