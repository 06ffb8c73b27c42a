//! Flushes. One sequence orders segments and flushes: a segment gets its number when it is opened,
//! and a flush makes the next number the floor. Opening a segment and flushing happen under the
//! allocator's lock. All items in segments below the floor are flushed.
//!
//! A writer reads the floor after its segment was opened, so that it neither appends to a flushed
//! segment nor copies items from a flushed segment to a later one.

use super::shared::Shared;
use crate::segment::item::record::Record;
use crate::segment::memory::allocator::Alloc;
use crate::segment::memory::header_page::HeaderPage;
use crate::segment::memory::table::{Entry, Sequence};
use crate::segment::sync::Ordering;
use crate::{ItemChange, Seconds};

impl HeaderPage {
    /// Returns the flush floor: items in segments with a lower sequence are flushed. The floor is 0
    /// before the first flush.
    #[inline]
    pub(crate) fn flush_floor(&self) -> Sequence {
        self.shared.flush_floor.load(Ordering::Acquire)
    }

    /// Returns whether the items of a segment are flushed.
    #[inline]
    pub(crate) fn is_flushed(&self, entry: Entry<'_>) -> bool {
        let floor = self.flush_floor();
        floor != 0 && entry.sequence().load(Ordering::Acquire) < floor
    }

    /// Takes the next sequence, for a segment or page that is opened now.
    pub(crate) fn next_sequence(&self, _: &mut Alloc) -> Sequence {
        self.order.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Invalidates all items stored so far, and cancels a pending flush.
    pub(crate) fn flush(&self, alloc: &mut Alloc) {
        let floor = self.order.sequence.load(Ordering::Relaxed);
        self.shared.flush_floor.store(floor, Ordering::Release);
        self.shared.flush_at.store(0, Ordering::Release);
        alloc.note_flush(floor);
        self.order.flush_generation.fetch_add(1, Ordering::Release);
    }

    /// Returns whether a flush is pending and due.
    #[inline]
    fn is_flush_due(&self, now: Seconds) -> bool {
        let at = self.shared.flush_at.load(Ordering::Acquire);
        at != 0 && at <= now.0.into()
    }
}

impl Shared {
    #[inline]
    pub(crate) fn flush_floor(&self) -> Sequence {
        self.table().header_page().flush_floor()
    }

    /// Returns the number of flushes that took effect, including flushes by earlier processes in
    /// the region. A flush is counted under the allocator's lock, and segments for items that are
    /// stored later are opened under the same lock.
    pub(crate) fn flush_generation(&self) -> u64 {
        self.table().header_page().order.flush_generation.load(Ordering::Acquire)
    }

    /// Returns whether a flush has invalidated the item of a record. Does not consider dropped
    /// tags.
    #[inline]
    pub(crate) fn is_flushed(&self, record: &Record<'_>) -> bool {
        self.table().header_page().is_flushed(record.entry())
    }

    /// Invalidates all items stored so far, and empties the sample for the miss-ratio curve.
    pub(crate) fn flush_now(&self) {
        self.table().header_page().flush(&mut self.alloc());
        // The open segments of all handles are below the floor now, so the next write of each
        // handle opens another segment.
        self.end_flush();
    }

    /// Empties the sample for the miss-ratio curve, and reports the flush to the observer of
    /// changes. Makes each handle search all segments, so that the item counts soon exclude the
    /// flushed items.
    fn end_flush(&self) {
        self.mrc.clear();
        self.crawls.fetch_add(1, Ordering::Relaxed);
        self.report_change(ItemChange::Invalidated);
    }

    /// Schedules a flush for `at`. Replaces a pending flush.
    pub(crate) fn flush_later(&self, at: Seconds) {
        let _alloc = self.alloc();
        let word = &self.table().header_page().shared.flush_at;
        word.store(at.0.max(1).into(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn flush_if_due(&self, now: Seconds) {
        let page = self.table().header_page();
        if !page.is_flush_due(now) {
            return;
        }
        let mut alloc = self.alloc();
        // Another thread may have flushed since the check. A second flush would invalidate items
        // that were stored after the first flush.
        if page.is_flush_due(now) {
            page.flush(&mut alloc);
            drop(alloc);
            self.end_flush();
        }
    }
}
