//! Leaving: what would be evicted is copied to segments that are written to flash.

use super::super::handle::Handle;
use super::super::header::State;
use super::super::open::Writer;
use super::super::open_segment::Open;
use super::super::record::{NewRecord, Record};
use super::super::shared::Shared;
use super::super::sync::Ordering;
use super::format::LEN_ADDED_MAX;
use crate::eviction::{Kind, Queue, SizeClass};

/// The part of all segments that may wait to be written, and how many always may.
const WAITING_SHARE: usize = 32;
const WAITING_MIN: usize = 4;

impl Shared {
    /// The bucket of pages for an item, if it may leave for flash.
    pub(in super::super) fn bucket_for(
        &self,
        record: &Record<'_>,
        now: crate::Seconds,
    ) -> Option<usize> {
        let flash = self.flash.as_ref().filter(|flash| !flash.is_off())?;
        let is_admitted = flash.admits_all()
            || record.header.has(State::Fetched)
            || record.entry().kind().queue == Queue::Main;
        // Values in segments of their own are too long for a block.
        if !is_admitted || record.header.has(State::Chain) || record.len() < flash.item_size() {
            return None;
        }
        let left = record.expiry().left(now);
        Some(usize::from(left.is_some_and(|left| left < flash.low_ttl())))
    }

    /// How many segments wait to be written, and how many may.
    pub(in super::super) fn leaving(&self) -> (usize, usize) {
        let max = || (self.limit_segments() / WAITING_SHARE).max(WAITING_MIN);
        self.flash.as_ref().map_or((0, 0), |flash| (flash.queue.len(), max()))
    }

    /// Whether maintenance had better evict nothing now: but for the one that is filled, as many segments wait
    /// to be written as may, and the device takes writes.
    pub(in super::super) fn waits_for_writes(&self) -> bool {
        let Some(flash) = &self.flash else { return false };
        let (waiting, max) = self.leaving();
        waiting + 1 >= max && !flash.is_off() && flash.is_writing()
    }

    /// Queues a segment of items that leave.
    pub(in super::super) fn send_off(&self, open: &Open) {
        let written = open.at - self.table().layout.start(open.segment);
        let written = u32::try_from(written).expect("a segment is short");
        self.table().entry(open.segment).written().store(written, Ordering::Release);
        if let Some(flash) = &self.flash {
            flash.queue.push(open.segment);
        }
    }
}

impl Handle {
    /// Makes sure that there is a segment for an item of `len` bytes that leaves; false if none can be had
    /// now: no eviction waits for flash.
    pub(in super::super) fn prepare_to_leave(&mut self, bucket: usize, len: usize) -> bool {
        let (shared, writer) = self.writer();
        let len = len + LEN_ADDED_MAX;
        let floor = shared.flush_floor();
        let leaving = &mut writer.writing.leaving[bucket];
        if leaving.as_ref().is_some_and(|open| open.has_room(len) && open.sequence >= floor) {
            return true;
        }
        if let Some(full) = leaving.take() {
            shared.send_off(&full);
        }
        let (waiting, waiting_max) = shared.leaving();
        if waiting >= waiting_max {
            // The thread that writes may wait for this core alone.
            std::thread::yield_now();
            return false;
        }
        let Some(segment) = self.take_for_leaving() else { return false };
        let (shared, writer) = self.writer();
        let table = shared.table();
        let entry = table.entry(segment);
        let lifetime = u8::try_from(bucket).expect("few buckets");
        let kind = Kind { queue: Queue::Main, lifetime, size: SizeClass::of(0) };
        let sequence = table.header_page().next_sequence(&mut shared.alloc());
        entry.open_for_leaving(kind, sequence, writer.now);
        let (base, at) = (entry.base(), table.layout.start(segment));
        let end = at + table.layout.segment_len;
        let open =
            Open { segment, kind, sequence, base, at, end, noted: None, chained: 0, items: 0 };
        writer.writing.leaving[bucket] = Some(open);
        true
    }
}

impl Handle {
    /// Takes any free segment, from the reserve if need be: it will be free again soon.
    fn take_for_leaving(&mut self) -> Option<u32> {
        let taken = self.shared.take(0);
        if taken.is_none() {
            self.pin.renew(&self.shared.epoch);
            self.shared.collect();
        }
        taken.or_else(|| self.shared.take(0))
    }
}

impl Writer<'_> {
    /// Copies an item to the segment of those that leave, and returns its offset there; `None` if there is no
    /// room, or a flush has taken effect since the segment was opened.
    pub(in super::super) fn copy_for_leaving(
        &mut self,
        shared: &Shared,
        record: &Record<'_>,
        bucket: usize,
    ) -> Option<usize> {
        let flash = shared.flash.as_ref()?;
        let floor = shared.flush_floor();
        let open = self.writing.leaving[bucket].as_mut().filter(|open| open.sequence >= floor)?;
        let copy = NewRecord::copy_of(record);
        let header = copy.header_for_flash(open.base);
        let len = flash.format.len_of(header);
        if !open.has_room(len) {
            return None;
        }
        let offset = open.at;
        open.at += len;
        open.items += 1;
        // SAFETY: the place is in this handle's own leaving segment, behind all published items.
        unsafe { copy.write(shared.table(), offset, header, shared.config.cas) };
        Some(offset)
    }
}
