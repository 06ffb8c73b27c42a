//! Demotion: copying items to write buffers. A write buffer is a segment that is written to flash.
//! An item is demoted in three cases: it would otherwise be evicted, it was idle for a long time,
//! or its page on flash is emptied and the item is kept.

use crate::eviction::{Kind, Queue, SizeClass};
use crate::segment::cache::shared::Shared;
use crate::segment::flash::format::LEN_ADDED_MAX;
use crate::segment::flash::pages::BUCKETS;
use crate::segment::handle::state::Handle;
use crate::segment::index::buckets::{LockedSlot, LockedStripe};
use crate::segment::item::header::State;
use crate::segment::item::new_record::NewRecord;
use crate::segment::item::record::Record;
use crate::segment::memory::open_segment::Open;
use crate::segment::memory::table::Table;
use crate::segment::sync::Ordering;
use crate::segment::write::writer::Writer;
use std::sync::Arc;

/// The maximum number of write buffers that wait to be written is the number of all segments
/// divided by `WAITING_SHARE`, but at least `WAITING_MIN`.
const WAITING_SHARE: usize = 32;
const WAITING_MIN: usize = 4;
/// The large values that wait to be written may together use the number of all segments divided by
/// this number, in addition to the write buffers. A value that waits alone may use more.
const LARGE_SHARE: usize = 16;
/// A large value is never written if it has more segments than the number of all segments divided
/// by this number.
const LARGE_MAX_SHARE: usize = 8;

/// The index of a handle's write buffer for a large item. Each large item has a buffer of its own,
/// which is queued immediately.
pub(crate) const LARGE_BUCKET: usize = BUCKETS;

impl Shared {
    /// Returns the bucket of an item. The bucket determines the write buffer and the page that
    /// receive the item. Returns `None` if the item must not be demoted to flash.
    pub(crate) fn bucket_for(&self, record: &Record<'_>, now: crate::Seconds) -> Option<usize> {
        let flash = self.flash.as_ref().filter(|flash| !flash.is_off())?;
        let is_admitted = flash.admits_all()
            || record.header.has(State::Fetched)
            || record.entry().kind().queue == Queue::Main;
        if !is_admitted || record.item_len() < flash.item_size() {
            return None;
        }
        if record.chain().is_some() {
            let is_possible = flash.format.large_len(record.value_len()).is_some();
            return is_possible.then_some(LARGE_BUCKET);
        }
        let left = record.expiry().left(now);
        Some(usize::from(left.is_some_and(|left| left < flash.low_ttl())))
    }

    /// Returns the number of write buffers that wait to be written, and the maximum number that may
    /// wait. Segments in chains of large values do not count. Both are 0 without flash.
    pub(crate) fn write_backlog(&self) -> (usize, usize) {
        let max = || (self.limit_segments() / WAITING_SHARE).max(WAITING_MIN);
        self.flash.as_ref().map_or((0, 0), |flash| (flash.queue.len(), max()))
    }

    /// Returns whether items should be evicted, because writes may soon need more segments than are
    /// free now or will be free after the queued writes. Large values are demoted before memory
    /// runs out, because their memory is free only after their write.
    pub(crate) fn needs_evictions(&self) -> bool {
        let (free_or_pending, chained) = {
            let alloc = self.alloc();
            (alloc.free_or_pending(), alloc.queues.chained())
        };
        let Some(flash) = &self.flash else { return free_or_pending <= self.reserve() };
        let (waiting, max) = self.write_backlog();
        let chained = usize::try_from(chained).unwrap_or(usize::MAX);
        let large_max = chained.min(self.limit_segments() / LARGE_SHARE);
        let large = flash.queue.large().min(large_max);
        free_or_pending + waiting.min(max) + large <= self.reserve() + max + large_max
    }

    /// Returns whether a large value may be demoted now, before its memory is needed.
    pub(crate) fn may_demote_large(&self) -> bool {
        self.flash.as_ref().is_some_and(|flash| !flash.is_off())
            && self.has_room_for_large(1)
            && self.needs_evictions()
    }

    /// Returns whether a large value of this many segments may be written at all.
    pub(crate) fn may_write_large(&self, segments: usize) -> bool {
        segments <= self.limit_segments() / LARGE_MAX_SHARE
    }

    /// Returns whether a large value of this many segments may be added to the large values that
    /// wait to be written.
    pub(crate) fn has_room_for_large(&self, segments: usize) -> bool {
        let waiting = self.flash.as_ref().map_or(0, |flash| flash.queue.large());
        waiting + segments <= self.limit_segments() / LARGE_SHARE
            || waiting == 0 && self.may_write_large(segments)
    }

    /// Returns whether maintenance should wait for queued writes and evict nothing now. Returns
    /// true if the device is completing writes, and one of two conditions holds: the queue has room
    /// for at most the write buffer that is being filled, or no large value may be added to the
    /// queue.
    pub(crate) fn waits_for_writes(&self) -> bool {
        let Some(flash) = &self.flash else { return false };
        let (waiting, max) = self.write_backlog();
        let is_full = waiting + 1 >= max || !self.has_room_for_large(1);
        is_full && !flash.is_off() && flash.is_writing()
    }

    /// Stores the length of a write buffer, and queues the buffer. A buffer without items is
    /// retired instead.
    pub(crate) fn queue_write(&self, open: &Open) {
        let written = open.at - self.table().layout.start(open.segment);
        let written = u32::try_from(written).expect("a segment is short");
        self.table().entry(open.segment).written().store(written, Ordering::Release);
        if written == 0 {
            return self.retire_segment(open.segment);
        }
        if let Some(flash) = &self.flash {
            flash.queue.push(open.segment, open.chained);
        }
    }
}

impl Handle {
    /// Ensures that the handle has a write buffer with room for an item of `len` bytes with
    /// `chained` segments in its chain. Returns false instead of waiting if no buffer is available,
    /// because evictions never wait for flash.
    pub(crate) fn prepare_demotion(&mut self, bucket: usize, len: usize, chained: usize) -> bool {
        let (shared, writer) = self.writer();
        if chained > 0 && !shared.has_room_for_large(chained) {
            return false;
        }
        let len = len + LEN_ADDED_MAX;
        let floor = shared.flush_floor();
        let buffer = &mut writer.writing.write_buffers[bucket];
        if buffer.as_ref().is_some_and(|open| open.has_room(len) && open.sequence >= floor) {
            return true;
        }
        if let Some(full) = buffer.take() {
            shared.queue_write(&full);
        }
        let (waiting, waiting_max) = shared.write_backlog();
        if waiting >= waiting_max {
            // Yield, because the thread that writes may wait for this core.
            std::thread::yield_now();
            return false;
        }
        let Some(segment) = self.take_write_buffer() else { return false };
        let (shared, writer) = self.writer();
        let table = shared.table();
        let entry = table.entry(segment);
        let lifetime = u8::try_from(bucket).expect("few buckets");
        let kind = Kind { queue: Queue::Main, lifetime, size: SizeClass::of(0) };
        let sequence = table.header_page().next_sequence(&mut shared.alloc());
        entry.open_write_buffer(kind, sequence, writer.now.secs);
        let (base, at) = (entry.base(), table.layout.start(segment));
        let end = at + table.layout.segment_len;
        let open =
            Open { segment, kind, sequence, base, at, end, noted: None, chained: 0, items: 0 };
        writer.writing.write_buffers[bucket] = Some(open);
        true
    }
}

impl Handle {
    /// Allocates any free segment, even from the reserve, because a write buffer is free again
    /// soon. Returns `None` if no segment is free.
    fn take_write_buffer(&mut self) -> Option<u32> {
        let taken = self.shared.take(0);
        if taken.is_none() {
            self.pin.renew(&self.shared.epoch);
            self.shared.collect();
        }
        taken.or_else(|| self.shared.take(0))
    }
}

impl Writer<'_> {
    /// Demotes the item whose index word is in `locked_slot`: copies it to the write buffer of its
    /// bucket. A large item keeps its chain, and its buffer is queued. Returns false if no buffer
    /// has room, or if a flush has taken effect since the buffer was opened.
    pub(crate) fn demote(
        &mut self,
        shared: &Arc<Shared>,
        stripe: &LockedStripe<'_, Table>,
        locked_slot: &LockedSlot<'_>,
        record: &Record<'_>,
        bucket: usize,
    ) -> bool {
        let copy = NewRecord { flash_copy: None, ..NewRecord::copy_of(record) };
        let Some(offset) = self.copy_to_write_buffer(shared, &copy, bucket) else { return false };
        shared.table().set_chain_owner(copy.chain.map(|chain| chain.first), offset);
        let freq = if locked_slot.word.is_on_flash() { 0 } else { locked_slot.freq() };
        stripe.replace(locked_slot, offset, freq);
        if copy.chain.is_some()
            && let Some(mut open) = self.writing.write_buffers[LARGE_BUCKET].take()
        {
            open.chained = shared.chain_segments_of(record);
            shared.queue_write(&open);
        }
        true
    }

    fn copy_to_write_buffer(
        &mut self,
        shared: &Shared,
        copy: &NewRecord<'_>,
        bucket: usize,
    ) -> Option<usize> {
        let flash = shared.flash.as_ref()?;
        let floor = shared.flush_floor();
        let open =
            self.writing.write_buffers[bucket].as_mut().filter(|open| open.sequence >= floor)?;
        let header = copy.header_for_flash(open.base);
        let len = flash.format.len_of(header);
        if !open.has_room(len) {
            return None;
        }
        let offset = open.at;
        open.at += len;
        open.items += 1;
        // SAFETY: the bytes are in this handle's own write buffer, after all published items.
        unsafe { copy.write(shared.table(), offset, header, shared.config.cas) };
        Some(offset)
    }
}
