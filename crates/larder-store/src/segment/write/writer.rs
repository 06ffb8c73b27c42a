//! Writing items to open segments, and removing them.

use crate::engine::RemovalReason;
use crate::eviction::{Kind, Placement, Queue, Sealed, SizeClass, chained_max, choose_segment};
use crate::segment::cache::counters::EvictedItem;
use crate::segment::cache::handle_shared::{HandleShared, WriteState};
use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::flash::pending_read::ItemRead;
use crate::segment::handle::state::Handle;
use crate::segment::index::buckets::{LockedSlot, LockedStripe};
use crate::segment::item::header::{Header, State};
use crate::segment::item::new_record::NewRecord;
use crate::segment::item::record::{Record, note_changed_expiry};
use crate::segment::large_value::builder::ValueBuilder;
use crate::segment::memory::allocator::QueueEntry;
use crate::segment::memory::free_lists::{self, FreeBlock};
use crate::segment::memory::open_segment::{Open, lifetime_class};
use crate::segment::memory::raw::hardware::CACHE_LINE;
use crate::segment::memory::table::{SegmentState, Sequence, Table};
use crate::segment::sync::{Ordering, fence, wait_for_others};
use crate::{Eviction, Expiry, ItemChange, Now, Refusal};
use std::sync::Arc;

/// While handles alternate, a write looks for a segment at most this many times, which takes a
/// second or more. Then the write is refused.
const ROUNDS_MAX: u32 = 10_000;

/// A segment is sealed because of the chains of its items only if it has at least this many items.
/// Without this minimum, each of the largest values of a small cache would use a whole segment for
/// the few bytes that are not in its chain.
const CHAINED_ITEMS_MIN: u32 = 4;

/// A handle changes the shared count of index words only after it has taken this many words more
/// than it has cleared, or the reverse.
const SLOTS_STEP: isize = 16;

/// The maximum number of free blocks that are tried for an item before it is appended to an open
/// segment.
const BLOCKS_TRIED: usize = 4;

/// The maximum number of bytes to prefetch of a dead record.
const PREFETCHED_MAX: usize = 1024;

/// The number of cache lines to prefetch after the last written item.
const LINES_AHEAD: usize = 4;

/// The parts of a handle that are needed to write while a stripe is locked. They are borrowed
/// separately from the handle's reference to the cache.
pub(crate) struct Writer<'h> {
    pub(crate) writing: &'h mut WriteState,
    pub(crate) value_builder: &'h mut Option<ValueBuilder>,
    pub(crate) handle_shared: &'h HandleShared,
    /// The reads from flash that were delivered in this batch.
    pub(crate) delivered: &'h [Arc<dyn ItemRead>],
    pub(crate) now: Now,
    /// The flush floor before the stripe was locked.
    pub(crate) floor: Sequence,
}

impl Handle {
    /// Takes the writing state from the [`HandleShared`], where other handles can access it.
    #[cold]
    #[inline(never)]
    fn begin_writing(&mut self) {
        let mut writing = self.handle_shared.take_writing();
        let shared = &self.shared;
        if shared.has_free_lists() {
            writing.free.advance(&shared.pool, &shared.epoch, || shared.oldest_pin());
        }
        self.writing = Some(writing);
    }

    /// Returns the writing state to the [`HandleShared`] until the next write.
    pub(crate) fn end_writing(&mut self) {
        if let Some(writing) = self.writing.take() {
            self.handle_shared.leave_writing(writing);
        }
    }

    /// Returns the cache and the [`Writer`] of this handle.
    #[inline]
    pub(crate) fn writer(&mut self) -> (&Arc<Shared>, Writer<'_>) {
        if self.writing.is_none() {
            self.begin_writing();
        }
        let writing = self.writing.as_deref_mut().expect("`begin_writing` has taken the state");
        let (value_builder, handle_shared, now) =
            (&mut self.value_builder, &*self.handle_shared, self.now);
        let (delivered, floor) = (&self.batch_reads.delivered[..], self.shared.flush_floor());
        (&self.shared, Writer { writing, value_builder, handle_shared, delivered, now, floor })
    }

    /// Ensures that an open segment has room for an item of this kind and length. Refuses the write
    /// if no segment can be made available.
    pub(crate) fn open_segment(&mut self, kind: Kind, len: usize) -> Result<(), Refusal> {
        for round in 0.. {
            let (shared, mut writer) = self.writer();
            if writer.adopt(shared, kind, len) {
                return Ok(());
            }
            let shared = Arc::clone(shared);
            // While handles alternate, do not wait for a free segment: another handle may return an
            // open segment first.
            let takes_turns = shared.handles_alternate() && round < ROUNDS_MAX;
            if !takes_turns || shared.alloc().open < shared.open_max() {
                let taken = if takes_turns { self.try_segment() } else { self.take_segment() };
                if let Ok(segment) = taken {
                    let (shared, mut writer) = self.writer();
                    writer.open(shared, kind, segment);
                    return Ok(());
                }
                if !takes_turns {
                    break;
                }
            }
            self.pin.pause();
            self.end_writing();
            wait_for_others(round);
        }
        Err(Refusal::OutOfMemory)
    }

    /// Adds the number of index words that this handle took, minus the number that it cleared, to
    /// the shared count of words in use. Grows the index if the count is high. Does nothing while
    /// the numbers of taken and cleared words differ by less than [`SLOTS_STEP`].
    pub(crate) fn flush_slot_delta(&mut self) {
        let (shared, writer) = self.writer();
        if writer.writing.slots.abs() < SLOTS_STEP {
            return;
        }
        if let Some(used) = shared.count_slots(writer.writing) {
            self.grow_if_full(used);
        }
    }

    /// Seals every open segment.
    pub(crate) fn seal_all(&mut self) {
        let (shared, writer) = self.writer();
        shared.seal_all(writer.writing);
    }
}

impl Shared {
    /// Adds to the shared count the number of index words that a handle took, minus the number that
    /// it cleared. Returns the number of words in use; `None` while the sum is negative.
    pub(crate) fn count_slots(&self, writing: &mut WriteState) -> Option<usize> {
        let slots = std::mem::take(&mut writing.slots);
        let before = self.slots_used.fetch_add(slots.cast_unsigned(), Ordering::Relaxed);
        let used = before.wrapping_add_signed(slots);
        // The shared count can be negative for a moment: one handle has subtracted the words that
        // it cleared, and another handle has not yet added these words, which it took.
        usize::try_from(used.cast_signed()).ok()
    }

    pub(crate) fn seal_all(&self, writing: &mut WriteState) {
        writing.open.drain(..).for_each(|open| self.seal(&open));
    }

    /// Seals a segment and adds it to its queue.
    pub(crate) fn seal(&self, open: &Open) {
        let table = self.table();
        let entry = table.entry(open.segment);
        let written = open.at - table.layout.start(open.segment);
        entry.written().store(
            u32::try_from(written).expect("a segment is shorter than 4 GiB"),
            Ordering::Relaxed,
        );
        let chained = open.chained * self.segment_len();
        let sealed =
            Sealed { queue: open.kind.queue, bytes: (written + chained) as u64, items: open.items };
        let mut alloc = self.alloc();
        alloc.open -= 1;
        entry.set_state(SegmentState::Sealed);
        alloc.enqueue(QueueEntry::of(table, open.segment), sealed);
    }
}

impl Writer<'_> {
    /// Returns the kind of an item: its queue, its lifetime class and its size class. `bytes` is
    /// its length, chain included.
    pub(crate) fn kind(&self, shared: &Shared, queue: Queue, expiry: Expiry, bytes: usize) -> Kind {
        let lifetimes = shared.lifetimes.load(Ordering::Relaxed);
        let lifetime = lifetime_class(expiry, self.now.secs, lifetimes);
        Kind { queue, lifetime, size: SizeClass::of(bytes as u64) }
    }

    /// Returns the position of the open segment for items of this kind. If the kind has no open
    /// segment, returns the position of a segment of a similar kind, or `None` if a new segment
    /// should be opened.
    fn open_position(&self, shared: &Shared, wanted: Kind) -> Option<usize> {
        let open = &self.writing.open;
        let own = open.iter().position(|open| open.kind == wanted);
        own.or_else(|| {
            let budget = shared.open_budget.load(Ordering::Relaxed);
            match choose_segment(wanted, open.iter().map(|open| open.kind), budget) {
                Placement::Open(i) => Some(i),
                Placement::New => None,
            }
        })
    }

    /// Returns the open segment for items of a kind, or `None` if no such segment is open or a
    /// flush has invalidated its items.
    fn open_of(&mut self, shared: &Shared, kind: Kind) -> Option<&mut Open> {
        let floor = shared.flush_floor();
        let i = self.open_position(shared, kind)?;
        self.writing.open.get_mut(i).filter(|open| open.sequence >= floor)
    }

    pub(crate) fn has_room(&mut self, shared: &Shared, kind: Kind, len: usize) -> bool {
        self.open_of(shared, kind).is_some_and(|open| open.has_room(len))
    }

    /// Takes over an open segment of this kind from a dropped handle. If too many segments are
    /// open, or memory is short while handles alternate, takes over a segment of the same queue
    /// from a handle between two batches. Returns false if there is no such segment.
    fn adopt(&mut self, shared: &Shared, kind: Kind, len: usize) -> bool {
        let floor = shared.flush_floor();
        let (adopted, crowded) = {
            let mut alloc = shared.alloc();
            let is_short = shared.handles_alternate() && alloc.free() <= shared.reserve() / 2;
            let crowded = is_short || alloc.open >= shared.open_max();
            (alloc.adopt(kind, len, floor), crowded)
        };
        let adopted = adopted.or_else(|| {
            let fits = |open: &Open| {
                open.kind.queue == kind.queue && open.has_room(len) && open.sequence >= floor
            };
            if crowded { shared.take_idle_open(fits) } else { None }
        });
        let Some(mut open) = adopted else { return false };
        open.kind = kind;
        self.replace(shared, open);
        true
    }

    /// Opens `segment` for items of `kind`, and seals the open segment to which these items were
    /// written before.
    pub(crate) fn open(&mut self, shared: &Shared, kind: Kind, segment: u32) {
        let table = shared.table();
        let entry = table.entry(segment);
        let (sequence, untouched) = {
            let mut alloc = shared.alloc();
            alloc.open += 1;
            (table.header_page().next_sequence(&mut alloc), alloc.untouched())
        };
        // Segments of the reserve do not count as unused, because they may stay unused even when
        // memory is full.
        let has_unused = untouched > shared.reserve();
        shared.note_unused(has_unused);
        if !has_unused {
            self.writing.free.clear();
        }
        entry.open(kind, sequence, self.now.secs);
        let at = table.layout.start(segment);
        let end = at + table.layout.segment_len;
        let base = entry.base();
        self.replace(
            shared,
            Open { segment, kind, sequence, base, at, end, noted: None, chained: 0, items: 0 },
        );
    }

    /// Makes `open` the segment to which items of its kind are written. Seals the open segment to
    /// which they were written before, if there is one.
    fn replace(&mut self, shared: &Shared, open: Open) {
        match self.open_position(shared, open.kind) {
            Some(i) => shared.seal(&std::mem::replace(&mut self.writing.open[i], open)),
            None => self.writing.open.push(open),
        }
    }

    /// Writes an item that no index word refers to yet. Returns its offset, or `None` if no open
    /// segment has room for it. [`Writer::unwrite`] undoes the write.
    pub(crate) fn write(
        &mut self,
        shared: &Shared,
        kind: Kind,
        record: &NewRecord<'_>,
    ) -> Option<usize> {
        let free = self.take_free_block(shared, kind, record);
        let (offset, header) = free.or_else(|| self.append(shared, kind, record))?;
        let table = shared.table();
        // SAFETY: the bytes are in this handle's own open segment, behind all published items, or
        // this handle has taken them from a dead record of the same length. In the second case, the
        // segment is the one in which that record died, and it is not retired before the new record
        // is dead. All pins that could have found the dead record have ended.
        unsafe { record.write(table, offset, header, shared.config.cas) };
        if record.has_tags() {
            // Notes the tags after the item was written, as for an expiry: either a search that
            // maintenance has started reads the item, or this note makes another search necessary.
            fence(Ordering::SeqCst);
            table.entry(table.layout.segment_of(offset)).note_tags();
        }
        if free.is_some() {
            let (expiry, entry) =
                (record.attributes.expiry, table.entry(table.layout.segment_of(offset)));
            if expiry != Expiry::Never || entry.may_all_expire() {
                note_changed_expiry(entry, expiry);
            }
        }
        Some(offset)
    }

    /// Reserves room for an item in an open segment. Returns its offset and header, or `None` if no
    /// open segment has room for it.
    fn append(
        &mut self,
        shared: &Shared,
        kind: Kind,
        record: &NewRecord<'_>,
    ) -> Option<(usize, Header)> {
        let open = self.open_of(shared, kind)?;
        let header = record.header(open.base);
        let len = header.record_len(shared.config.cas);
        if !open.has_room(len) {
            return None;
        }
        let (offset, table) = (open.at, shared.table());
        let expiry = record.attributes.expiry;
        if open.noted.replace(expiry) != Some(expiry) {
            table.entry(open.segment).note_expiry(expiry);
        }
        open.at += len;
        open.items += 1;
        // The handle writes its next item directly after this one. Prefetch that memory: otherwise
        // the locked instructions that follow the next write would wait for it.
        table.region.prefetch_for_write::<LINES_AHEAD>(open.at + CACHE_LINE);
        Some((offset, header))
    }

    /// Takes the block of a dead record for an item with the same length, queue and lifetime class.
    /// Returns the offset of the block and the header of the item. Returns `None` if the item has a
    /// chain, if there are no free lists, or if none of the blocks tried can be used.
    #[inline]
    fn take_free_block(
        &mut self,
        shared: &Shared,
        kind: Kind,
        record: &NewRecord<'_>,
    ) -> Option<(usize, Header)> {
        if !shared.has_free_lists() || record.chain.is_some() {
            return None;
        }
        let (table, cas) = (shared.table(), shared.config.cas);
        let header = record.header(self.now.secs);
        let len = header.record_len(cas);
        for _ in 0..BLOCKS_TRIED {
            let block = self.writing.free.take(&shared.pool, len)?;
            let segment = table.layout.segment_of(block.offset);
            let entry = table.entry(segment);
            let header = record.header_at(header, entry.base());
            // Do not use the block if the floor has risen since the writer checked whether the old
            // item is live. A flush has then invalidated that item, and the segment of the block
            // may have been opened after the flush.
            let is_flushed = block.sequence < self.floor || shared.flush_floor() != self.floor;
            if is_flushed
                || !entry.is_for(kind)
                || shared.is_aged(segment, self.now.secs)
                || header.record_len(cas) != len
            {
                continue;
            }
            let len = u32::try_from(len).expect("an item fits a segment");
            self.handle_shared.block.note_filled(table, segment);
            if let Some(before) = entry.take_dead(block.sequence, len) {
                shared.note_dead(segment, before - len, before);
                return Some((block.offset, header));
            }
        }
        None
    }

    /// Undoes the last write, which was not published.
    pub(crate) fn unwrite(&mut self, shared: &Shared, record: &Record<'_>) {
        let open = &mut self.writing.open;
        let end = record.offset + record.len();
        match open.iter_mut().find(|open| open.at == end && open.segment == record.segment()) {
            Some(open) => {
                open.at = record.offset;
                open.items -= 1;
            }
            // The record was written over a dead record.
            None => shared.mark_record_dead(record),
        }
    }

    /// Counts the chain of an item that was just written at `offset`. Seals the segment if it has
    /// enough items and their chains have enough segments.
    pub(crate) fn count_chain(&mut self, shared: &Shared, offset: usize, segments: usize) {
        let segment = shared.table().layout.segment_of(offset);
        let Some(i) = self.writing.open.iter().position(|open| open.segment == segment) else {
            return;
        };
        let open = &mut self.writing.open[i];
        open.chained += segments;
        let is_full = open.items >= CHAINED_ITEMS_MIN
            && open.chained >= chained_max(shared.limit_segments(), shared.config.threads);
        let chained = u32::try_from(segments).expect("segments are counted in 32 bits");
        shared.alloc().queues.add_chain(segment, open.kind.queue, chained);
        if is_full {
            shared.seal(&self.writing.open.swap_remove(i));
        }
    }

    /// Subtracts an item from the counts and marks it dead. No index word refers to the item any
    /// more. `keep_chain` is true if another item has taken over its chain.
    #[inline]
    pub(crate) fn mark_dead(
        &mut self,
        shared: &Arc<Shared>,
        record: &Record<'_>,
        keep_chain: bool,
    ) {
        let (class, footprint) = shared.class_and_footprint_of(record);
        self.handle_shared.block.remove_item(shared.table(), class, footprint);
        self.mark_counted_dead(shared, record, keep_chain);
    }

    /// Marks an item dead. The caller has already subtracted the item from the counts.
    #[inline]
    pub(crate) fn mark_counted_dead(
        &mut self,
        shared: &Arc<Shared>,
        record: &Record<'_>,
        keep_chain: bool,
    ) {
        // Read the sequence before the mark, because the segment may be retired as soon as the
        // record is dead.
        let sequence = record.entry().sequence().load(Ordering::Relaxed);
        shared.mark_dead(record, keep_chain);
        // Large values leave no free block, because their tail may be leased.
        if shared.has_free_lists() && record.chain().is_none() {
            self.add_free_block(shared, record, sequence);
        }
    }

    /// Adds the block of a dead record to the free lists, if another record may be written there.
    #[inline]
    fn add_free_block(&mut self, shared: &Shared, record: &Record<'_>, sequence: Sequence) {
        let (len, segment) = (record.len(), record.segment());
        let is_usable = len <= free_lists::LEN_MAX
            && !record.entry().is_closed()
            && !shared.is_aged(segment, self.now.secs);
        if is_usable {
            self.writing.free.add(len, FreeBlock { offset: record.offset, sequence });
            // Prefetch the block, because the most recently freed blocks are reused first.
            // Otherwise the locked instructions that follow a write would wait for this memory.
            let behind_head = record.offset + CACHE_LINE..record.offset + len.min(PREFETCHED_MAX);
            shared.table().region.prefetch_range_for_write(behind_head);
        }
    }

    /// Evicts an item: removes it and adds a ghost. If the key is stored again soon, the new item
    /// enters the main queue because of the ghost.
    pub(crate) fn evict(
        &mut self,
        shared: &Arc<Shared>,
        stripe: &LockedStripe<'_, Table>,
        locked_slot: &LockedSlot<'_>,
        record: &Record<'_>,
        hash: u64,
    ) {
        let words = shared.table().ghosts(stripe.bucket());
        let ghosts = shared.ghosts(words).remember(hash, shared.ghost_epoch());
        shared.set_ghosts(words, ghosts);
        self.count_evicted(shared, record);
        self.remove(shared, stripe, locked_slot, record);
    }

    /// Removes an item from the index and marks it dead.
    pub(crate) fn remove(
        &mut self,
        shared: &Arc<Shared>,
        stripe: &LockedStripe<'_, Table>,
        locked_slot: &LockedSlot<'_>,
        record: &Record<'_>,
    ) {
        let abort_guard = AbortOnUnwind;
        self.handle_shared.block.note_dying(shared.table(), record.segment());
        stripe.remove(locked_slot);
        self.writing.slots -= 1;
        self.mark_dead(shared, record, false);
        std::mem::forget(abort_guard);
    }

    /// Counts an evicted item, and calls the observer.
    pub(crate) fn count_evicted(&self, shared: &Shared, record: &Record<'_>) {
        let (attributes, accessed) = (record.attributes(), record.accessed());
        let fetched = record.header.has(State::Fetched);
        let idle_secs = self.now.secs.0.saturating_sub(accessed.0);
        let mortal = attributes.expiry != Expiry::Never;
        let (class, _) = shared.class_and_footprint_of(record);
        self.handle_shared.stats.evict(
            class,
            EvictedItem { fetched, mortal, idle_secs },
            self.now.secs,
        );
        self.report_eviction(shared, record, None);
    }

    /// Calls the observer for an item that leaves memory. `flash_bucket` is the bucket of the flash
    /// page to which the item moves, or `None` if it does not move to flash.
    pub(crate) fn report_eviction(
        &self,
        shared: &Shared,
        record: &Record<'_>,
        flash_bucket: Option<u8>,
    ) {
        if let Some(observer) = shared.observer.get() {
            let eviction = Eviction {
                key: record.key(),
                attributes: record.attributes(),
                fetched: record.header.has(State::Fetched),
                accessed: record.accessed(),
                value_len: record.value_len(),
                now: self.now.secs,
                flash_bucket,
            };
            let abort_guard = AbortOnUnwind;
            observer(&eviction);
            std::mem::forget(abort_guard);
        }
    }

    /// Counts an item that was removed because it was no longer valid. `crawled` is true if
    /// maintenance found it.
    pub(crate) fn count_reclaimed(&self, shared: &Shared, record: &Record<'_>, crawled: bool) {
        let (class, _) = shared.class_and_footprint_of(record);
        let reason = if shared.is_flushed(record) {
            RemovalReason::Flushed
        } else if record.is_past(self.now) {
            RemovalReason::Expired
        } else {
            RemovalReason::Untagged
        };
        self.handle_shared.stats.reclaim(class, reason, record.header.has(State::Fetched), crawled);
        if reason == RemovalReason::Expired {
            shared.report_change(ItemChange::Expired(record.key()));
        }
    }
}
