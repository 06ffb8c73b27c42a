//! The words that each handle keeps in the region for a later process. For each size class, they
//! contain the number and the bytes of the items that the handle has added, minus those of the
//! items that it has removed. They also contain the numbers of the segments that the handle is
//! changing.
//!
//! ```text
//! byte 0  dying    the segment of the item that the handle removed last, plus one
//!      4  filled   the segment in which the handle last overwrote a dead record, plus one
//!      8  searched the segment that the handle last searched for expired items, plus one
//!     64  items and bytes of each size class, 8 bytes each
//! ```
//! The counts wrap around, because one handle may remove items that another handle has added. The
//! sums over all blocks are the counts of the cache. The words with segment numbers are never
//! reset. If a process dies during a change, the next process counts the dead bytes of the segments
//! in `dying` and `filled` again. For a segment that was not being changed, the result is the same.

use super::layout::BLOCK_HEAD_LEN;
use super::table::Table;
use crate::segment::sync::AtomicU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The block of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The offset of the block in the region.
    at: usize,
    /// Whether the block is shared: the last block serves all handles that have no block of their
    /// own.
    is_shared: bool,
}

impl Block {
    pub(crate) fn new(table: &Table, number: usize) -> Self {
        let layout = &table.layout;
        Self { at: layout.block(number), is_shared: number + 1 == layout.blocks }
    }

    pub(crate) fn is_shared(self) -> bool {
        self.is_shared
    }

    /// Returns the words that count the items and the bytes of a class.
    #[inline]
    fn words(self, table: &Table, class: usize) -> &[AtomicU64; 2] {
        table.region.counters(self.at + BLOCK_HEAD_LEN + 16 * class)
    }

    #[inline]
    fn add(self, table: &Table, class: usize, items: u64, bytes: u64) {
        let [own_items, own_bytes] = self.words(table, class);
        if self.is_shared {
            own_items.fetch_add(items, Relaxed);
            own_bytes.fetch_add(bytes, Relaxed);
        } else {
            own_items.store(own_items.load(Relaxed).wrapping_add(items), Relaxed);
            own_bytes.store(own_bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
        }
    }

    #[inline]
    pub(crate) fn add_item(self, table: &Table, class: usize, bytes: usize) {
        self.add(table, class, 1, bytes as u64);
    }

    #[inline]
    pub(crate) fn remove_item(self, table: &Table, class: usize, bytes: usize) {
        self.add(table, class, 1_u64.wrapping_neg(), (bytes as u64).wrapping_neg());
    }

    /// Returns the two counts of a class: the number of items, and their length in bytes.
    pub(crate) fn counts(self, table: &Table, class: usize) -> [u64; 2] {
        self.words(table, class).each_ref().map(|word| word.load(Relaxed))
    }

    /// Sets the two counts of a class. No other thread may count at the same time.
    pub(crate) fn set_counts(self, table: &Table, class: usize, counts: [u64; 2]) {
        for (word, count) in self.words(table, class).iter().zip(counts) {
            word.store(count, Relaxed);
        }
    }

    fn segment(self, table: &Table, i: usize) -> &AtomicU32 {
        table.region.half(self.at + 4 * i)
    }

    /// Records that an item of `segment` is being removed. The caller calls this function before
    /// the item's index word changes.
    #[inline]
    pub(crate) fn note_dying(self, table: &Table, segment: u32) {
        self.segment(table, 0).store(segment + 1, Relaxed);
    }

    /// Records that a dead record of `segment` is being overwritten.
    #[inline]
    pub(crate) fn note_filled(self, table: &Table, segment: u32) {
        self.segment(table, 1).store(segment + 1, Relaxed);
    }

    /// Records that a segment is being searched for expired items.
    pub(crate) fn note_searched(self, table: &Table, segment: u32) {
        self.segment(table, 2).store(segment + 1, Relaxed);
    }

    /// Returns the segment that was last searched for expired items, or `None` before the first
    /// search.
    pub(crate) fn searched(self, table: &Table) -> Option<u32> {
        self.segment(table, 2).load(Relaxed).checked_sub(1)
    }

    /// Returns the segments in which the handle last removed an item and last overwrote a dead
    /// record.
    pub(crate) fn noted(self, table: &Table) -> impl Iterator<Item = u32> {
        let segments = [0, 1].map(|i| self.segment(table, i).load(Relaxed));
        segments.into_iter().filter_map(|segment| segment.checked_sub(1))
    }
}
