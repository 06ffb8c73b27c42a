//! Marks records dead, and retires and reuses segments and chains. Leases delay the reuse.

use super::shared::Shared;
use crate::ExcessMemory;
use crate::segment::item::record::{Chain, Record};
use crate::segment::memory::allocator::{RetiredMemory, dead_level};
use crate::segment::memory::table::{RETIRED, SegmentState};
use crate::segment::sync::Ordering;
use std::sync::Arc;

impl Shared {
    /// Marks a record dead. No index word refers to the record any more. Retires its chain, unless
    /// `keep_chain` is true because another record has taken over the chain.
    #[inline]
    pub(crate) fn mark_dead(self: &Arc<Self>, record: &Record<'_>, keep_chain: bool) {
        if let (Some(chain), false) = (record.chain(), keep_chain) {
            self.retire_chain(record, chain);
        }
        self.mark_record_dead(record);
    }

    #[cold]
    fn retire_chain(&self, record: &Record<'_>, chain: Chain) {
        let segments = self.chain_segments_of(record);
        strict_assert!(
            self.chain_segments(chain.first).count() == segments,
            "the chain has all segments of its value"
        );
        strict_assert!(
            self.table().entry(chain.first).owner() == Some(record.offset),
            "a chain is retired with its owner"
        );
        self.take_chain_off(record.segment(), segments);
        self.retire(chain.first, segments);
    }

    /// Marks a record dead. The record has no chain, or another record owns its chain.
    #[inline]
    pub(crate) fn mark_record_dead(&self, record: &Record<'_>) {
        let (dead, before) = record.mark_dead();
        self.note_dead(record.segment(), dead, before);
    }

    /// Updates the dead level of a sealed segment after the length of its dead items changed from
    /// `before` to `dead` bytes.
    #[inline]
    pub(crate) fn note_dead(&self, segment: u32, dead: u32, before: u32) {
        let entry = self.table().entry(segment);
        if !entry.is(SegmentState::Sealed) {
            return;
        }
        let written = entry.written().load(Ordering::Relaxed);
        let level = |dead| dead_level(self.table(), dead, written);
        if level(dead) != level(before) {
            self.change_dead_level(segment, written);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_dead_level(&self, segment: u32, written: u32) {
        let mut alloc = self.alloc();
        // Read the dead bytes under the lock: another thread may have marked more records dead and
        // set a higher level.
        let dead = self.table().entry(segment).dead();
        alloc.set_dead_level(segment, dead_level(self.table(), dead, written));
    }

    /// Subtracts a chain of `segments` segments from the chains that are counted for `segment`,
    /// which contains the chain's item. The caller has retired the chain, or moved the item to
    /// another segment.
    pub(crate) fn take_chain_off(&self, segment: u32, segments: usize) {
        let segments = u32::try_from(segments).expect("segments are counted in 32 bits");
        self.alloc().queues.remove_chain(segment, segments);
    }

    /// Retires a segment that was emptied. It is free once all readers of its epoch have finished
    /// and its last lease was dropped.
    pub(crate) fn retire_segment(&self, segment: u32) {
        let entry = self.table().entry(segment);
        strict_assert!(
            entry.dead() == entry.written().load(Ordering::Relaxed),
            "no item of a retired segment is live"
        );
        entry.set_state(SegmentState::Retired);
        self.retire(segment, 1);
    }

    pub(crate) fn retire(&self, first: u32, segments: usize) {
        let mut alloc = self.alloc();
        let epoch = self.epoch.advance();
        alloc.retire(RetiredMemory { epoch, first, segments });
    }

    /// Frees a retired segment or chain that no reader can find any more. If the memory has leases,
    /// its last lease frees it.
    pub(crate) fn release(&self, first: u32) {
        let leases = self.table().entry(first).leases().fetch_or(RETIRED, Ordering::AcqRel);
        if leases == 0 {
            self.recycle(first);
        }
    }

    /// Frees the segment `first`, or the chain that starts with it.
    pub(crate) fn recycle(&self, first: u32) {
        let segments: Vec<u32> = self.chain_segments(first).collect();
        self.free(&segments);
    }

    /// Frees segments that neither an index word nor a reader refers to.
    pub(crate) fn free(&self, segments: &[u32]) {
        for &segment in segments {
            self.table().entry(segment).set_state(SegmentState::Free);
        }
        self.alloc().give_back(segments);
    }

    /// Returns the segments of a chain, in order.
    pub(crate) fn chain_segments(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&segment| {
            self.table().entry(segment).next().load(Ordering::Relaxed).checked_sub(1)
        })
    }

    /// Counts `segments` as leased. Returns false if more than half of all segments are leased now.
    pub(crate) fn charge_lease(&self, segments: usize) -> bool {
        let leased = self.leased.fetch_add(segments, Ordering::Relaxed) + segments;
        leased <= self.limit_segments() / 2
    }

    /// Returns by how many bytes leases and uploads exceed certain shares of the limit. If they
    /// exceed a share, the server disconnects slow peers. The memory between that share and the
    /// maximum is for peers that are not slow. The maximum is half of all segments for leases, and
    /// `large_value::upload::UPLOAD_SHARE` for uploads.
    pub(crate) fn excess_memory(&self) -> ExcessMemory {
        let (limit, uploading) = (self.limit_segments(), self.alloc().uploading);
        let over = |held: usize, max: usize| held.saturating_sub(max) * self.segment_len();
        ExcessMemory {
            leased: over(self.leased.load(Ordering::Relaxed), limit * 3 / 8),
            uploaded: over(uploading, limit / 2),
            uploaded_by_any: over(uploading, limit * 9 / 16),
        }
    }

    pub(crate) fn unlease(&self, segments: usize) {
        self.leased.fetch_sub(segments, Ordering::Relaxed);
    }
}
