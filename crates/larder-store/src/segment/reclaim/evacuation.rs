//! Emptying a segment: cleaning a partly dead segment, or evicting a segment that the policy chose.
//!
//! An evacuation reads one sealed segment from front to back, and moves, demotes or drops each item
//! under the lock of its stripe. Writes that need room do this work, a few items each, so that no
//! write takes long. A write that finds no free segment continues until one is free. Maintenance
//! evacuates up to 256 records in a step.

use crate::eviction::{Kind, Queue, Verdict};
use crate::segment::cache::handle_shared::{Evacuation, EvacuationReason};
use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::flash::tier::Flash;
use crate::segment::handle::state::{Handle, liveness};
use crate::segment::index::word::IndexWord;
use crate::segment::item::header::State;
use crate::segment::item::new_record::NewRecord;
use crate::segment::item::record::Record;
use crate::segment::item::witness::{OwnedSegment, Witness};
use crate::segment::memory::allocator::{Alloc, QueueEntry};
use crate::segment::sync::Ordering;
use std::sync::Arc;

/// A segment with at least this dead level (see `allocator`) is cleaned before anything is evicted.
/// At this level, 17 % of the segment is dead. In a measurement, three of ten sets were overwrites.
/// Compared with a level of 20 %, live items filled 90 instead of 83 % of the segments, and a set
/// took a tenth longer. The simulator has a copy of this level (`CLEAN_PERCENT` in
/// `simulate/s3fifo.rs` of `larder-capacity`).
const CLEAN_LEVEL: usize = 6;
/// The dead level for cleaning in a cache that does not evict: 3 %, because any gain counts.
const CLEAN_LEVEL_NO_EVICTION: usize = 1;
/// The dead level for cleaning before the cache uses new memory: 91 %. It is high, so that few
/// items move. With random overwrites, live items fill a third of the used memory at this level. In
/// a measurement at a level of 75 %, they filled half of it, but sets with Zipf-distributed keys
/// took a third longer.
const CLEAN_LEVEL_EARLY: usize = 32;
/// The dead level for early cleaning of segments that are too old for `free_lists`: 49 %. This
/// cleaning moves an item at most once in two minutes.
const CLEAN_LEVEL_AGED: usize = 17;
/// The number of records that each write evacuates. It is low, so that each record is prefetched
/// before it is read.
const RECORDS_PER_WRITE: usize = 2;
/// The number of records that each write evacuates while few segments are free.
const RECORDS_PER_WRITE_LOW_MEMORY: usize = 8;

/// The maximum number of records that one step of maintenance reads in old segments to find idle
/// items.
const AGING_STEP: usize = 256;

impl Handle {
    fn evacuation(&mut self) -> &mut Option<Evacuation> {
        &mut self.writer().1.writing.evacuation
    }

    /// Chooses a segment to empty, unless a segment is already being emptied. Returns whether a
    /// segment is being emptied afterwards.
    pub(crate) fn begin_evacuation(&mut self) -> bool {
        if self.evacuation().is_some() {
            return true;
        }
        if self.shared.handles_alternate() {
            let others = self.shared.take_idle_evacuation();
            if others.is_some() {
                *self.evacuation() = others;
                return true;
            }
        }
        let evict = self.shared.config.evict;
        let level = if evict { CLEAN_LEVEL } else { CLEAN_LEVEL_NO_EVICTION };
        let chosen = self.choose(level);
        let Some((reason, segment)) = chosen else { return false };
        self.begin(reason, segment);
        true
    }

    /// Chooses a segment to clean if writes are about to use untouched segments, unless a segment
    /// is being emptied. Prefers a segment without live items, then a segment with few live items,
    /// then a segment that is about half dead and too old for `free_lists`. So a small cache under
    /// a large limit stays small.
    pub(crate) fn begin_early_cleaning(&mut self) {
        if self.evacuation().is_some() {
            return;
        }
        let chosen = {
            let mut alloc = self.shared.alloc();
            if alloc.is_about_to_use_more_memory() {
                let is_aged = |segment| self.shared.is_aged(segment, self.now.secs);
                let expired = self.take_expired(&mut alloc);
                let dead = expired.or_else(|| alloc.take_dead(CLEAN_LEVEL_EARLY));
                dead.or_else(|| alloc.take_dead_if(CLEAN_LEVEL_AGED, is_aged))
            } else {
                None
            }
        };
        if let Some(segment) = chosen {
            self.begin(EvacuationReason::Clean, segment);
        }
    }

    fn begin(&mut self, reason: EvacuationReason, segment: u32) {
        let table = self.shared.table();
        table.entry(segment).close();
        let at = table.layout.start(segment);
        let end = at + table.entry(segment).written().load(Ordering::Relaxed) as usize;
        let segment = OwnedSegment(segment);
        let evacuation = Evacuation {
            segment,
            at,
            hash: None,
            end,
            reason,
            rate: RECORDS_PER_WRITE,
            evicted: 0,
            demoted: 0,
        };
        *self.evacuation() = Some(evacuation);
    }

    fn choose(&self, clean_level: usize) -> Option<(EvacuationReason, u32)> {
        let shared = &self.shared;
        let mut alloc = shared.alloc();
        let clean = self.take_expired(&mut alloc).or_else(|| alloc.take_dead(clean_level));
        if let Some(segment) = clean {
            return Some((EvacuationReason::Clean, segment));
        }
        if !shared.config.evict {
            return None;
        }
        let first_hits = |segment| shared.table().entry(segment).first_hits();
        let victim = alloc.take_victim(|s| first_hits(s).load(Ordering::Relaxed).into())?;
        Some((EvacuationReason::Evict(victim.queue), victim.segment))
    }

    /// Demotes to flash the items that were idle for `ext_item_age` seconds. Does nothing if that
    /// setting is off. Returns true if this step demoted at least half of the records that it read.
    pub(crate) fn demote_idle_step(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let age = shared.flash.as_ref().filter(|flash| !flash.is_off()).and_then(Flash::item_age);
        // Flash drops items to make room, which a cache without eviction must not do.
        let Some(age) = age.filter(|_| shared.config.evict) else { return false };
        let is_aging =
            |evacuation: &Evacuation| matches!(evacuation.reason, EvacuationReason::Age(_));
        if self.evacuation().is_none() && !shared.waits_for_writes() {
            let base = |segment| shared.table().entry(segment).base().0;
            let is_old = |segment| self.now.secs.0.saturating_sub(base(segment)) > age;
            let chosen = {
                let mut alloc = shared.alloc();
                let has_room = alloc.free_or_pending() > shared.reserve();
                if has_room { alloc.take_front_if(is_old) } else { None }
            };
            if let Some(segment) = chosen {
                self.begin(EvacuationReason::Age(age), segment);
            }
        }
        let demoted = |handle: &mut Self| handle.evacuation().as_ref().map_or(0, |e| e.demoted);
        let (mut records, mut demotions) = (0, 0);
        while records < AGING_STEP
            && self.evacuation().as_ref().is_some_and(is_aging)
            && !shared.waits_for_writes()
        {
            let before = demoted(self);
            if !self.evacuate_next() {
                break;
            }
            demotions += demoted(self).saturating_sub(before);
            records += 1;
        }
        self.pin.renew(&shared.epoch);
        shared.collect();
        // If most items stay, demoting the other items is worth only an occasional step, so do not
        // ask for the next step now.
        records > 0 && demotions * 2 >= records
    }

    fn take_expired(&self, alloc: &mut Alloc) -> Option<u32> {
        let entry = |segment| self.shared.table().entry(segment);
        alloc.take_expired(
            self.now.secs.0,
            |segment| entry(segment).last_expiry().load(Ordering::Relaxed),
            |segment| entry(segment).sequence().load(Ordering::Relaxed),
        )
    }

    /// Sets the rate of evacuation: higher if few segments are free.
    pub(crate) fn set_evacuation_rate(&mut self, free_or_pending: usize, reserve: usize) {
        if let Some(evacuation) = self.evacuation() {
            let is_short = match evacuation.reason {
                // Speed up earlier, because cleaning frees only a small part of the memory that it
                // reads.
                EvacuationReason::Clean | EvacuationReason::Age(_) => free_or_pending <= reserve,
                EvacuationReason::Evict(_) => free_or_pending < reserve * 3 / 4,
            };
            evacuation.rate =
                if is_short { RECORDS_PER_WRITE_LOW_MEMORY } else { RECORDS_PER_WRITE };
        }
    }

    /// Evacuates one record before a write. The next record is prefetched during the write.
    pub(crate) fn evacuate_before_write(&mut self) {
        if self.evacuation().is_some() {
            self.evacuate_records(1);
        }
    }

    /// Evacuates the remaining records of a write's share.
    pub(crate) fn evacuate_after_write(&mut self) {
        if let Some(rate) = self.evacuation().as_ref().map(|evacuation| evacuation.rate) {
            self.evacuate_records(rate - 1);
        }
    }

    /// Evacuates up to `records` records. Stops before a large item that would have to be dropped,
    /// because dropping it would free more segments than may be needed. A large item is demoted to
    /// flash if that is possible.
    fn evacuate_records(&mut self, records: usize) {
        for _ in 0..records {
            let (shared, writer) = self.writer();
            let Some(evacuation) = &writer.writing.evacuation else { return };
            if evacuation.at < evacuation.end
                && matches!(evacuation.reason, EvacuationReason::Evict(_))
            {
                let witness = Witness::owner(&evacuation.segment);
                let (table, cas) = (shared.table(), shared.config.cas);
                let record = Record::at(table, evacuation.at, cas, witness);
                let is_large = record.chain().is_some() && !record.header.has(State::Dead);
                if is_large && !shared.may_demote_large() {
                    return;
                }
            }
            self.evacuate_next();
        }
    }

    /// Evacuates the next record of the segment that is being emptied, or ends the evacuation.
    /// Returns false if there is no evacuation, or if the segment was put back into its queue. The
    /// segment is put back if the record can be neither moved nor dropped, or if [`Handle::finish`]
    /// finds a new item in the segment.
    pub(crate) fn evacuate_next(&mut self) -> bool {
        let Some(mut evacuation) = self.evacuation().take() else { return false };
        if evacuation.at >= evacuation.end {
            return self.finish(&evacuation);
        }
        let abort_guard = AbortOnUnwind;
        let evacuated = self.evacuate_one(&mut evacuation);
        std::mem::forget(abort_guard);
        match evacuated {
            Some(len) => {
                evacuation.at += len;
                self.look_ahead(&mut evacuation);
                *self.evacuation() = Some(evacuation);
                true
            }
            // Stop: the item can be neither moved nor demoted, and must not be dropped.
            None => {
                self.shared.put_back(&evacuation);
                false
            }
        }
    }

    /// Hashes the key of the next record, and prefetches the key's buckets and the header of the
    /// record after the next.
    fn look_ahead(&self, evacuation: &mut Evacuation) {
        evacuation.hash = None;
        if evacuation.at >= evacuation.end {
            return;
        }
        let (shared, witness) = (&self.shared, Witness::owner(&evacuation.segment));
        let table = shared.table();
        let record = Record::at(table, evacuation.at, shared.config.cas, witness);
        table.region.prefetch(evacuation.at + record.len());
        if !record.header.has(State::Dead) {
            let hash = shared.hash(record.key());
            shared.index.candidates_of(hash).into_iter().for_each(|bucket| {
                table.region.prefetch(table.bucket_offset(bucket));
            });
            evacuation.hash = Some(hash);
        }
    }

    /// Retires the segment. If an item was written to the segment since its records were read, puts
    /// the segment back and returns false. This happens if a handle took a dead record of the
    /// segment for reuse before the segment was closed.
    fn finish(&mut self, evacuation: &Evacuation) -> bool {
        let entry = self.shared.table().entry(evacuation.segment.0);
        let is_empty = entry.dead() == entry.written().load(Ordering::Relaxed);
        if is_empty {
            self.shared.retire_segment(evacuation.segment.0);
        } else {
            self.shared.put_back(evacuation);
        }
        if evacuation.evicted > 0 {
            self.shared.age_ghosts(evacuation.evicted);
        }
        self.pin.renew(&self.shared.epoch);
        self.shared.collect();
        // The moved items have used some of the freed memory. If memory is full, the next segment
        // is emptied only when it is needed, because more of its items may die by then.
        if is_empty {
            self.begin_early_cleaning();
        }
        is_empty
    }

    /// Moves, demotes or drops the next record, and returns its length in bytes. Returns `None` if
    /// none of these is possible now.
    fn evacuate_one(&mut self, evacuation: &mut Evacuation) -> Option<usize> {
        let (cas, at) = (self.shared.config.cas, evacuation.at);
        let keeps_unwritten = self.keeps_unwritten;
        let witness = Witness::owner(&evacuation.segment);
        let record = Record::at(self.shared.table(), at, cas, witness);
        let len = record.len();
        if record.header.has(State::Dead) {
            return Some(len);
        }
        let queue = match evacuation.reason {
            EvacuationReason::Clean | EvacuationReason::Age(_) => record.entry().kind().queue,
            EvacuationReason::Evict(_) => Queue::Main,
        };
        let (expiry, item_len) = (record.expiry(), record.item_len());
        let chained = self.shared.chain_segments_of(&record);
        let flash_bucket = match evacuation.reason {
            EvacuationReason::Clean => None,
            EvacuationReason::Age(age)
                if self.now.secs.0.saturating_sub(record.accessed().0) < age =>
            {
                None
            }
            EvacuationReason::Evict(_) | EvacuationReason::Age(_) => {
                self.shared.bucket_for(&record, self.now.secs)
            }
        };
        // This check does not acquire the lock of the stripe. It may avoid the allocation of a
        // write buffer. The check under the lock decides.
        let has_copy =
            flash_bucket.is_some() && self.shared.has_copy_on_flash(IndexWord::EMPTY, &record);
        let hash = evacuation.hash.unwrap_or_else(|| self.shared.hash(record.key()));
        let (shared, writer) = self.writer();
        let kind = writer.kind(shared, queue, expiry, item_len);
        // The copy may need 4 bytes more for an exact expiry, rounded up to 8.
        let room = self.reserve_room(kind, len + 8);
        let can_be_demoted = !has_copy
            && flash_bucket.is_some_and(|bucket| self.prepare_demotion(bucket, len, chained));
        let (shared, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let Some(locked_slot) = stripe.find(|word| word.offset() == at) else { return Some(len) };
        // Read again under the lock, because attributes may have changed.
        let record = Record::at(shared.table(), at, cas, Witness::locked(&stripe));
        if !liveness(shared, &record, writer.now).is_live() {
            writer.count_reclaimed(shared, &record, false);
            writer.remove(shared, &stripe, &locked_slot, &record);
            return Some(len);
        }
        let kept = match evacuation.reason {
            EvacuationReason::Clean => Some(locked_slot.freq()),
            EvacuationReason::Age(_) => flash_bucket.is_none().then(|| locked_slot.freq()),
            EvacuationReason::Evict(queue) => {
                match writer.writing.keep_limit(shared.segment_len()).verdict(
                    queue,
                    locked_slot.freq(),
                    len as u64,
                ) {
                    Verdict::MoveToMain => Some(0),
                    Verdict::Reinsert(freq) => Some(freq),
                    Verdict::Evict => None,
                }
            }
        };
        let moved = kept.filter(|_| room).and_then(|freq| {
            let copy = NewRecord::copy_of(&record);
            let offset = writer.write(shared, kind, &copy)?;
            shared.table().set_chain_owner(copy.chain.map(|chain| chain.first), offset);
            stripe.replace(&locked_slot, offset, freq);
            Some(offset)
        });
        if let Some(offset) = moved {
            let segments = shared.chain_segments_of(&record);
            if segments > 0 {
                shared.take_chain_off(record.segment(), segments);
                writer.count_chain(shared, offset, segments);
            }
            shared.mark_dead(&record, true);
            return Some(len);
        }
        if !liveness(shared, &record, writer.now).is_live() {
            // Since the check above, a flush has taken effect or a tag of the item was dropped, so
            // the item is reclaimed, not evicted. A flush also invalidates the open segment.
            writer.count_reclaimed(shared, &record, false);
            writer.remove(shared, &stripe, &locked_slot, &record);
            return Some(len);
        }
        let may_evict = shared.config.evict && shared.alloc().retired_segments() == 0;
        if evacuation.reason == EvacuationReason::Clean && !may_evict {
            return None;
        }
        let is_idle =
            flash_bucket.is_some() || !matches!(evacuation.reason, EvacuationReason::Age(_));
        if is_idle && writer.demote_to_copy(shared, &stripe, &locked_slot, &record) {
            shared.mark_dead(&record, false);
            evacuation.demoted += 1;
            return Some(len);
        }
        if let Some(bucket) = flash_bucket {
            if can_be_demoted && writer.demote(shared, &stripe, &locked_slot, &record, bucket) {
                if chained > 0 {
                    shared.take_chain_off(record.segment(), chained);
                }
                shared.mark_dead(&record, true);
                evacuation.demoted += 1;
                return Some(len);
            }
            if keeps_unwritten && shared.flash.as_ref().is_some_and(Flash::is_writing) {
                return None;
            }
            if !matches!(evacuation.reason, EvacuationReason::Age(_)) {
                shared.count_dropped();
            }
        }
        if matches!(evacuation.reason, EvacuationReason::Age(_)) {
            // The record stays in memory until it is evicted.
            return None;
        }
        writer.evict(shared, &stripe, &locked_slot, &record, hash);
        evacuation.evicted += 1;
        Some(len)
    }

    /// Opens a segment of `kind`, from the reserve if necessary, unless the open segment for items
    /// of `kind` has room for `len` bytes. Returns true if the open segment now has room.
    fn reserve_room(&mut self, kind: Kind, len: usize) -> bool {
        let (shared, mut writer) = self.writer();
        if writer.has_room(shared, kind, len) {
            return true;
        }
        let taken = shared.take(0);
        if let Some(segment) = taken {
            writer.open(shared, kind, segment);
        }
        taken.is_some()
    }
}

impl Shared {
    /// Puts a segment that was not emptied completely back into its queue.
    pub(crate) fn put_back(&self, evacuation: &Evacuation) {
        self.table().entry(evacuation.segment.0).reopen();
        let segment = evacuation.segment.0;
        self.alloc().put_back(QueueEntry::of(self.table(), segment));
    }

    /// Counts evictions, which determine the age of ghosts, and clears outdated ghosts from the
    /// buckets that are due for a sweep.
    pub(crate) fn age_ghosts(&self, evicted: u64) {
        let live = self.slots_used.load(Ordering::Relaxed).cast_signed().max(0);
        let buckets = self.index.len();
        let (sweep, epoch) = {
            let mut alloc = self.alloc();
            let sweep = alloc.count_evictions(evicted, live.cast_unsigned() as u64, buckets);
            (sweep, alloc.ghosts.epoch())
        };
        let word = &self.table().header_page().order.ghost_epoch;
        word.store(epoch.index().into(), Ordering::Relaxed);
        for bucket in sweep {
            let _locked = self.index.lock(bucket as u64);
            let words = self.table().ghosts(bucket);
            let ghosts = self.ghosts(words);
            let swept = ghosts.sweep(epoch);
            if swept != ghosts {
                self.set_ghosts(words, swept);
            }
        }
    }
}
