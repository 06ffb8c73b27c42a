//! Making room: cleaning segments that are partly dead, evicting by S3-FIFO, growing the index, and
//! looking for what has expired.
//!
//! A drain walks one sealed segment from front to back and moves or drops each item under the lock
//! of its stripe. It is done a few items at a time, by the writes that cause it, so that none of
//! them waits long; only a write that finds no free segment at all drains a segment whole.
#![expect(
    clippy::cast_possible_truncation,
    reason = "a segment is shorter than 4 GiB, and there are fewer"
)]

use super::alloc::{Alloc, Kind, Queue};
use super::chain::Upload;
use super::ghost;
use super::handle::{Handle, void};
use super::header::{Header, State};
use super::record::{Draft, OwnedSegment, Record, Witness};
use super::slot::Slot;
use super::sync::{Ordering, pin, wait_a_little};
use super::{Shared, index};
use crate::{Lookup, Refusal};
use std::sync::Arc;

/// A segment that is being emptied.
#[derive(Debug)]
pub(super) struct Drain {
    /// Of its own: a count of references that all threads change with every item would cost more
    /// than the item.
    shared: Arc<Shared>,
    segment: OwnedSegment,
    /// The next item's offset in the region.
    at: usize,
    /// Its key's hash, once its bucket is on its way.
    hash: Option<u64>,
    end: usize,
    reason: Reason,
    /// Records that each write empties on its way.
    pace: usize,
}

impl Drain {
    /// Starts fetching what the next record needs, and the head of the one behind it.
    fn look_ahead(&mut self) {
        self.hash = None;
        if self.at >= self.end {
            return;
        }
        let (table, witness) = (self.shared.table(), Witness::owner(&self.segment));
        let record = Record::at(table, self.at, self.shared.config.cas, witness);
        table.region.prefetch(self.at + record.len());
        if !record.header.has(State::Dead) {
            let hash = self.shared.hash(record.key());
            self.shared.index.candidates_of(hash).into_iter().for_each(|bucket| {
                table.region.prefetch(table.bucket_offset(bucket));
            });
            self.hash = Some(hash);
        }
    }
}

/// Why a segment is emptied: what becomes of the live items in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Much of it is dead: all that is live moves on.
    Clean,
    /// It is its turn: what was asked for moves on, the rest is dropped.
    Evict(Queue),
}

/// Dead share, in percent of a segment, from which cleaning beats evicting. By measurement: where
/// three sets in ten overwrite, live items have 90 % of the segments, and 83 % with 20 here, for a
/// tenth more time a set.
const CLEAN_PERCENT: usize = 17;
/// The same where nothing may be evicted: any gain counts.
const CLEAN_PERCENT_FULL: usize = 3;
/// The same before memory is touched that never was: little may be moved for it. Where keys are
/// overwritten at random live items then have a third of the memory in use. By measurement: with 75
/// here they have half, but sets of keys by Zipf take a third longer.
const CLEAN_PERCENT_EARLY: usize = 90;
/// Records that a write empties on its way: as a rule, so few that each has come from memory by the
/// time it is looked at; and where segments are wanted faster.
const PACE: usize = 2;
const PACE_SHORT: usize = 8;
/// Segments that main may keep whole in a row before it must give something up.
const KEPT_MAX: usize = 16;
/// Share of the index words in use, in percent, from which the index grows.
const INDEX_LOAD: usize = 85;
/// Buckets added at a time.
const GROWTH_STEP: usize = 4;
/// Share of all segments that index and ghosts may have, in percent.
const INDEX_SHARE: usize = 40;
/// Share of all segments that uploads may hold, in percent: one of half the limit always fits.
const UPLOAD_SHARE: usize = 62;
/// Times that a write grows the index for a place before it drops a neighbour.
const CROWDED_MAX: u32 = 64;
/// Records emptied in one step under a lowered limit: some hundred microseconds.
const SHRINK_STEP: usize = 1024;
/// Fruitless looks for memory before a write is refused: others may be about to give some back.
const PATIENCE: u32 = 1000;
/// The same where nothing may be evicted, and a full cache is nothing unusual.
const PATIENCE_FULL: u32 = 100;

impl Handle {
    /// A free segment, for a write.
    pub(super) fn take_segment(&mut self) -> Result<u32, Refusal> {
        if self.shared.alloc().limbo > 0 {
            // What is in limbo may be free by now.
            self.let_the_epoch_pass();
        }
        for waited in 0.. {
            self.keep_in_sight();
            let taken = self.shared.alloc().take(self.shared.reserve() / 2);
            if let Some(segment) = taken {
                return Ok(segment);
            }
            let drained = self.drain_until_in_sight();
            let hopeless = !drained && self.shared.alloc().limbo == 0;
            self.let_the_epoch_pass();
            let patience = if self.shared.config.evict { PATIENCE } else { PATIENCE_FULL };
            if hopeless && waited > patience {
                return Err(Refusal::OutOfMemory);
            }
            if !drained {
                // Others have to end their batches first, and may need this core for it.
                wait_a_little(waited);
            }
        }
        Err(Refusal::OutOfMemory)
    }

    /// Sees to it that a segment is being emptied where one will be wanted, and how fast.
    fn keep_in_sight(&mut self) {
        let (in_sight, reserve) = (self.shared.alloc().in_sight(), self.shared.reserve());
        if in_sight <= reserve {
            self.start_drain();
        } else {
            self.start_early_drain();
        }
        if let Some(drain) = &mut self.drain {
            let is_wanted_fast = match drain.reason {
                // It gains little of what it goes through.
                Reason::Clean => in_sight <= reserve,
                Reason::Evict(_) => in_sight < reserve * 3 / 4,
            };
            drain.pace = if is_wanted_fast { PACE_SHORT } else { PACE };
        }
    }

    /// Empties segments until something will be free; false if nothing was done for it. It stops
    /// within a segment: the items in it may each own many others.
    fn drain_until_in_sight(&mut self) -> bool {
        let mut drained = false;
        while self.shared.alloc().in_sight() <= self.shared.reserve() && self.start_drain() {
            if !self.drain_step() {
                // What is in limbo has to come back first.
                return false;
            }
            drained = true;
        }
        drained
    }

    /// Lets memory go that this handle's own pin may be holding. Nothing is lent while a write is
    /// under way, so the pin can be renewed.
    fn let_the_epoch_pass(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.repin();
            guard.flush();
        } else {
            pin().flush();
        }
    }

    pub(super) fn extend_segments(&mut self, upload: &mut Upload) -> Result<(), Refusal> {
        let max = self.shared.limit_segments() * UPLOAD_SHARE / 100;
        if self.shared.alloc().uploading >= max {
            return Err(Refusal::OutOfMemory);
        }
        let segment = self.take_segment()?;
        upload.segments.push(segment);
        self.shared.alloc().uploading += 1;
        Ok(())
    }

    /// Chooses a segment to empty, unless one is chosen; whether there is one.
    fn start_drain(&mut self) -> bool {
        if self.drain.is_some() {
            return true;
        }
        let mut choice = self.choose(CLEAN_PERCENT);
        if choice.is_none() {
            if !self.shared.config.evict {
                choice = self.choose(CLEAN_PERCENT_FULL);
            } else if self.shared.alloc().used() > 0 {
                // All there is may be in what this handle has open.
                self.seal_all();
                choice = self.choose(CLEAN_PERCENT);
            }
        }
        let Some((reason, segment)) = choice else { return false };
        self.drain(reason, segment);
        true
    }

    /// Chooses a segment of which hardly anything lives, if nearly all that were ever in use are
    /// taken: a small cache under a large limit stays small.
    fn start_early_drain(&mut self) {
        if self.drain.is_none() {
            let worth = |segment| self.worth(segment, CLEAN_PERCENT_EARLY);
            let chosen = self.shared.alloc().take_before_untouched(worth);
            if let Some(segment) = chosen {
                self.drain(Reason::Clean, segment);
            }
        }
    }

    fn drain(&mut self, reason: Reason, segment: u32) {
        let table = self.shared.table();
        let at = table.layout.start(segment);
        let end = at + table.entry(segment).written().load(Ordering::Relaxed) as usize;
        let shared = Arc::clone(&self.shared);
        let segment = OwnedSegment(segment);
        self.drain = Some(Drain { shared, segment, at, hash: None, end, reason, pace: PACE });
    }

    fn choose(&self, clean_percent: usize) -> Option<(Reason, u32)> {
        let shared = &self.shared;
        let worth = |segment| self.worth(segment, clean_percent);
        let mut alloc = shared.alloc();
        let clean = alloc.take_best(worth).map(|segment| (Reason::Clean, segment));
        clean.or_else(|| {
            let evict =
                || alloc.take_oldest().map(|(queue, segment)| (Reason::Evict(queue), segment));
            shared.config.evict.then(evict).flatten()
        })
    }

    /// What cleaning a segment gains, if enough.
    fn worth(&self, segment: u32, clean_percent: usize) -> Option<u32> {
        let shared = &self.shared;
        let entry = shared.table().entry(segment);
        let written = entry.written().load(Ordering::Relaxed);
        let flushed =
            entry.sequence().load(Ordering::Relaxed) < shared.flush_floor.load(Ordering::Relaxed);
        if written == 0 || flushed || entry.last_expiry().load(Ordering::Relaxed) <= self.now.0 {
            return Some(u32::MAX);
        }
        let dead = entry.dead().load(Ordering::Relaxed);
        (dead as usize * 100 >= shared.segment_len() * clean_percent).then_some(dead)
    }

    /// Empties a record of the segment that is being drained, before a write. What the next one says
    /// is fetched meanwhile.
    pub(super) fn drain_before_write(&mut self) {
        if self.drain.is_some() {
            self.drain_on_the_way(1);
        }
    }

    /// The other records that a write empties on its way.
    pub(super) fn drain_after_write(&mut self) {
        if let Some(drain) = &self.drain {
            self.drain_on_the_way(drain.pace - 1);
        }
    }

    /// Empties up to `records` records, but no large ones: one of them is worth many segments, which
    /// may not be needed.
    fn drain_on_the_way(&mut self, records: usize) {
        for _ in 0..records {
            let Some(drain) = &self.drain else { return };
            let header = |at| Header(self.shared.table().region.word(at).load(Ordering::Relaxed));
            if drain.at < drain.end && header(drain.at).has(State::Chain) {
                return;
            }
            self.drain_step();
        }
    }

    /// Deals with the next record of the segment that is being drained, or with its end; false if it
    /// can't go on for now.
    fn drain_step(&mut self) -> bool {
        let Some(mut drain) = self.drain.take() else { return false };
        if drain.at >= drain.end {
            self.finish(&drain);
            return true;
        }
        match self.drain_one(&drain) {
            Some(len) => {
                drain.at += len;
                drain.look_ahead();
                self.drain = Some(drain);
                true
            }
            // Nowhere to move to: it stays as it is for now.
            None => {
                self.put_back(&drain);
                false
            }
        }
    }

    fn finish(&mut self, drain: &Drain) {
        let segment = drain.segment.0;
        match &self.guard {
            Some(guard) => self.shared.retire(segment, guard),
            None => self.shared.retire(segment, &pin()),
        }
        self.let_the_epoch_pass();
        // What was moved has taken some of what is gained. Where memory is full another is emptied
        // only once it is wanted: until then more of it dies.
        self.start_early_drain();
    }

    fn put_back(&mut self, drain: &Drain) {
        let kind = self.shared.table().entry(drain.segment.0).kind();
        self.shared.alloc().enqueue(kind, drain.segment.0);
    }

    pub(super) fn put_drain_back(&mut self) {
        if let Some(drain) = self.drain.take() {
            self.put_back(&drain);
        }
    }

    /// Deals with the record at the front; its length, or `None` if it can neither move nor go.
    fn drain_one(&mut self, drain: &Drain) -> Option<usize> {
        let shared = &drain.shared;
        let witness = Witness::owner(&drain.segment);
        let cas = shared.config.cas;
        let record = Record::at(shared.table(), drain.at, cas, witness);
        let len = record.len();
        if record.header.has(State::Dead) {
            return Some(len);
        }
        let queue = match drain.reason {
            Reason::Clean => record.entry().kind().queue,
            Reason::Evict(_) => Queue::Main,
        };
        let kind = self.writer().1.kind(shared, queue, record.expiry());
        let room = self.reserve_room(kind, len + 8);
        let hash = drain.hash.unwrap_or_else(|| shared.hash(record.key()));
        let stripe = shared.index.lock(hash);
        let Some(place) = stripe.find(|slot| slot.offset() == drain.at) else { return Some(len) };
        // As it is now, under the lock: marks and expiry may just have changed.
        let record = Record::at(shared.table(), drain.at, cas, Witness::locked(&stripe));
        let kept = self.keeps(drain.reason, place.freq(), len);
        let (_, mut writer) = self.writer();
        if void::<()>(shared, &record, writer.now).is_some() {
            writer.count_reclaimed(shared, &record, false);
            writer.remove(shared, &stripe, &place, &record);
            return Some(len);
        }
        let moved = kept.filter(|_| room).and_then(|freq| {
            let offset = writer.write(shared, kind, &copy_of(&record))?;
            stripe.replace(&place, Slot::new(hash, offset, freq));
            Some(())
        });
        if moved.is_some() {
            if let (Some(chain), Reason::Evict(from)) = (record.chain(), drain.reason) {
                let segments = shared.chain_segments(chain.first).count();
                shared.alloc().count_chain(from, segments, false);
                writer.count_chain(shared, kind, segments);
            }
            record.bury();
            return Some(len);
        }
        if drain.reason == Reason::Clean && (!shared.config.evict || shared.alloc().limbo > 0) {
            return None;
        }
        ghost::remember(shared.table().ghosts(stripe.bucket()), hash);
        writer.count_evicted(shared, &record);
        writer.remove(shared, &stripe, &place, &record);
        Some(len)
    }

    /// Whether an item with this frequency moves on, and with which.
    fn keeps(&mut self, reason: Reason, freq: u8, len: usize) -> Option<u8> {
        match reason {
            Reason::Clean => Some(freq),
            Reason::Evict(Queue::Small) => (freq >= self.hits_wanted(len)).then_some(0),
            Reason::Evict(Queue::Main) => {
                if self.kept > KEPT_MAX * self.shared.segment_len() {
                    self.kept = 0;
                    return None;
                }
                let lowered = freq.checked_sub(1);
                self.kept = if lowered.is_some() { self.kept + len } else { self.kept / 2 };
                lowered
            }
        }
    }

    /// Hits that take an item from the small queue to the main one: large ones have to earn it.
    fn hits_wanted(&mut self, len: usize) -> u8 {
        let mean = self.mean_len.max(1);
        self.mean_len = (mean * 63 + len) / 64;
        match len / mean {
            0..=2 => 1,
            3..=8 => 2,
            _ => 3,
        }
    }

    /// Makes sure that an item of `len` bytes can move to `kind`, out of the reserve if need be.
    fn reserve_room(&mut self, kind: Kind, len: usize) -> bool {
        let (shared, mut writer) = self.writer();
        if writer.has_room(shared, kind, len) {
            return true;
        }
        let taken = shared.alloc().take(0);
        if let Some(segment) = taken {
            writer.open(shared, kind, segment);
        }
        taken.is_some()
    }

    /// Finds an index word for a key whose buckets are full: grows, and if that has not helped
    /// [`CROWDED_MAX`] times or the index may not grow, drops the coldest neighbour.
    pub(super) fn make_slot(&mut self, hash: u64, crowded: u32) -> Result<(), Refusal> {
        let before = self.shared.index.len();
        if crowded <= CROWDED_MAX {
            let grown = self.grow(GROWTH_STEP);
            if !grown {
                // Another thread is at it.
                wait_a_little(crowded);
            }
            if !grown || self.shared.index.len() > before {
                return Ok(());
            }
        }
        if !self.shared.config.evict {
            return Err(Refusal::OutOfMemory);
        }
        self.evict_coldest(hash);
        Ok(())
    }

    fn evict_coldest(&mut self, hash: u64) {
        let (shared, mut writer) = self.writer();
        let stripe = shared.index.lock(hash);
        let Some(place) = stripe.coldest() else { return };
        let record = shared.record(place.slot, Witness::locked(&stripe));
        writer.count_evicted(shared, &record);
        writer.remove(shared, &stripe, &place, &record);
    }

    /// Grows the index a little once it is full enough.
    pub(super) fn grow_if_full(&mut self, used: usize) {
        let words = self.shared.index.len() * index::BUCKET_SLOTS;
        // A sum of differences may pass below zero for a moment.
        if used.cast_signed() > 0 && used * 100 > words * INDEX_LOAD {
            self.grow(GROWTH_STEP);
        }
    }

    /// Adds up to `steps` buckets; false if another thread is doing so.
    fn grow(&mut self, steps: usize) -> bool {
        let shared = Arc::clone(&self.shared);
        let Ok(_growing) = shared.growth.try_lock() else { return false };
        for _ in 0..steps {
            let new = shared.index.len();
            let wants = shared.table().wants(new);
            if wants > 0 && !self.give_to_index(&shared, new, wants) {
                return true;
            }
            let guard = pin();
            let witness = Witness::pinned(&guard);
            let rehash = |slot| shared.hash(shared.record(slot, witness).key());
            shared.index.grow(rehash, |from, to| {
                let [from, to] = [from, to].map(|bucket| shared.table().ghosts(bucket));
                for (from, to) in from.iter().zip(to) {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            });
        }
        true
    }

    fn give_to_index(&mut self, shared: &Shared, bucket: usize, wants: usize) -> bool {
        let may =
            |alloc: &Alloc| (alloc.indexing + wants) * 100 <= shared.limit_segments() * INDEX_SHARE;
        if !may(&shared.alloc()) {
            return false;
        }
        let taken: Vec<u32> = (0..wants).map_while(|_| self.take_segment().ok()).collect();
        if taken.len() < wants {
            let mut alloc = shared.alloc();
            taken.into_iter().for_each(|segment| alloc.give_back(segment));
            return false;
        }
        shared.alloc().indexing += wants;
        shared.table().extend(bucket, taken.into_iter());
        true
    }

    /// Gives one segment that the limit no longer allows back to the system, or makes progress
    /// towards it; whether there is more to do. Writes keep their reserve meanwhile.
    pub(super) fn give_back(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let free = {
            let mut alloc = shared.alloc();
            if alloc.excess() == 0 {
                return false;
            }
            alloc.take(shared.reserve())
        };
        if let Some(segment) = free {
            let layout = &shared.table().layout;
            // SAFETY: the segment was free, and is this handle's until it is parked. Segments begin
            // and end at pages.
            unsafe { shared.table().region.discard(layout.start(segment), layout.segment_len) };
            shared.alloc().park(segment);
            return true;
        }
        // One record may own many segments: no more of them than it takes.
        let enough = || {
            let alloc = shared.alloc();
            alloc.in_sight() >= alloc.excess() + shared.reserve()
        };
        let mut records = 0;
        while records < SHRINK_STEP && !enough() && self.start_drain() && self.drain_step() {
            records += 1;
        }
        self.let_the_epoch_pass();
        records > 0 || shared.alloc().limbo > 0
    }

    /// Walks the next sealed segment in which something has expired; whether there may be more.
    pub(super) fn crawl(&mut self) -> bool {
        let segments = self.shared.segments_seen.load(Ordering::Relaxed) as u32;
        while self.crawler < segments {
            let segment = self.crawler;
            self.crawler += 1;
            let entry = self.shared.table().entry(segment);
            let sealed = entry.sealed().load(Ordering::Acquire) == 1;
            if sealed && entry.first_expiry().load(Ordering::Relaxed) <= self.now.0 {
                self.expire(segment);
                return true;
            }
        }
        self.crawler = 0;
        false
    }

    /// Drops what has expired in a segment. It may be drained by another meanwhile: the pin keeps
    /// its bytes, and the index decides what lives.
    fn expire(&mut self, segment: u32) {
        let shared = Arc::clone(&self.shared);
        let guard = pin();
        let (table, entry) = (shared.table(), shared.table().entry(segment));
        if entry.sealed().load(Ordering::Acquire) == 0 {
            return;
        }
        entry.first_expiry().store(u32::MAX, Ordering::Relaxed);
        let mut at = table.layout.start(segment);
        let end = at + entry.written().load(Ordering::Relaxed) as usize;
        while at < end {
            let record = Record::at(table, at, shared.config.cas, Witness::pinned(&guard));
            if !record.header.has(State::Dead) && record.expiry() != crate::Expiry::Never {
                self.expire_one(&shared, &record);
            }
            at += record.len();
        }
    }

    fn expire_one(&mut self, shared: &Arc<Shared>, record: &Record<'_>) {
        let (_, mut writer) = self.writer();
        let stripe = shared.index.lock(shared.hash(record.key()));
        let Some(place) = stripe.find(|slot| slot.offset() == record.offset) else { return };
        let record = shared.record(place.slot, Witness::locked(&stripe));
        if let Some(Lookup::<()>::Expired) = void(shared, &record, writer.now) {
            writer.count_reclaimed(shared, &record, true);
            writer.remove(shared, &stripe, &place, &record);
        } else if let crate::Expiry::At(at) = record.expiry() {
            record.entry().first_expiry().fetch_min(at.0, Ordering::Relaxed);
        }
    }
}

/// The same item, to be written elsewhere.
fn copy_of<'p>(record: &Record<'p>) -> Draft<'p> {
    Draft {
        attributes: record.attributes(),
        cas: record.cas(),
        fetched: record.header.has(State::Fetched),
        accessed: record.accessed(),
        key: record.key(),
        value: [record.inline_value(), &[], &[]],
        chain: record.chain(),
    }
}
