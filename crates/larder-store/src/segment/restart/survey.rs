//! A survey of a region that an earlier process has left: the states of its segments, and which
//! index words and records are valid.

use crate::segment::cache::shared::narrow;
use crate::segment::flash::format::Format;
use crate::segment::flash::pages::{Page, PageState};
use crate::segment::index::buckets::Index;
use crate::segment::index::word::IndexWord;
use crate::segment::item::record::Record;
use crate::segment::item::witness::Witness;
use crate::segment::memory::handle_block::Block;
use crate::segment::memory::table::{Entry, SegmentState, Sequence, Table};
use crate::segment::sync::{AtomicU64, Ordering};

/// The contradiction that makes a region unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorruptRegion(pub(crate) &'static str);

/// The findings about a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentFindings {
    pub(super) state: SegmentState,
    /// The number of index words that refer to the segment.
    pub(super) items: u32,
    /// The total number of segments in the chains that belong to this segment's items.
    pub(super) chained: u32,
    /// An upper bound for the region offset at which the segment's last record ends.
    pub(super) end: usize,
    /// Whether the segment's dead bytes have to be counted again.
    pub(super) is_suspect: bool,
    /// Whether the segment was open when the earlier process ended.
    pub(super) was_open: bool,
}

/// An index word that refers to a suspect segment: the offset of its record, and its slot.
#[derive(Clone, Copy)]
pub(super) struct Reference<'t> {
    pub(super) offset: usize,
    pub(super) slot: &'t AtomicU64,
}

/// The findings about a region.
pub(super) struct Survey<'t> {
    pub(super) table: &'t Table,
    pub(super) cas: bool,
    pub(super) found: Vec<SegmentFindings>,
    /// The format of items on flash; `None` without flash.
    pub(super) flash: Option<Format>,
    /// The number of items on each page, and their counted length in bytes. Empty if the flash
    /// content is not known.
    pub(super) pages: Vec<(u32, u64)>,
}

impl<'t> Survey<'t> {
    /// Reads the states of the first `seen` segments.
    pub(super) fn states(
        table: &Table,
        seen: usize,
    ) -> Result<Vec<SegmentFindings>, CorruptRegion> {
        let layout = &table.layout;
        let found = (0..narrow(seen)).map(|segment| {
            let entry = table.entry(segment);
            let state = entry.state().ok_or(CorruptRegion("a segment has no valid state"))?;
            let (start, written) = (layout.start(segment), entry.written());
            let written = written.load(Ordering::Relaxed) as usize;
            let end = match state {
                SegmentState::Sealed if written <= layout.segment_len => start + written,
                SegmentState::Sealed => return Err(CorruptRegion("a segment has no valid length")),
                SegmentState::Open | SegmentState::WriteBuffer => start + layout.segment_len,
                _ => start,
            };
            let is_odd = entry.is_closed() || entry.dead() as usize > written;
            let is_odd = state == SegmentState::Sealed && is_odd;
            let is_suspect =
                is_odd || matches!(state, SegmentState::Open | SegmentState::WriteBuffer);
            let was_open = state == SegmentState::Open;
            Ok(SegmentFindings { state, items: 0, chained: 0, end, is_suspect, was_open })
        });
        found.collect()
    }

    /// Finds the segments of the index, ghosts, tags and pages. Returns their number, not counting
    /// the segments of pages. Segments that a process was about to add become free.
    pub(super) fn restore_index_parts(
        table: &Table,
        found: &[SegmentFindings],
        buckets: usize,
        pages: usize,
    ) -> Result<usize, CorruptRegion> {
        let mut parts = 0;
        for (segment, found) in (0..).zip(found) {
            if found.state == SegmentState::Pages
                && !table.restore_part(segment, found.state, pages)
            {
                table.entry(segment).restore_state(SegmentState::Free);
            }
            if found.state == SegmentState::Tags {
                if table.restore_part(segment, found.state, table.tag_buckets()) {
                    parts += 1;
                } else {
                    table.entry(segment).restore_state(SegmentState::Free);
                }
            }
            if let state @ (SegmentState::Buckets | SegmentState::Ghosts) = found.state {
                if table.restore_part(segment, state, buckets) {
                    parts += 1;
                } else {
                    table.entry(segment).restore_state(SegmentState::Free);
                }
            }
        }
        if !table.has_page_parts(pages) {
            return Err(CorruptRegion("a part of the table of pages is missing"));
        }
        if !table.has_tag_parts(table.tag_buckets()) {
            return Err(CorruptRegion("a part of the table of tags is missing"));
        }
        table
            .has_parts(buckets)
            .then_some(parts)
            .ok_or(CorruptRegion("a part of the index is missing"))
    }

    /// Drops the oldest segments with items until `wanted` segments are free, so that a full cache
    /// can get a flash tier. The index words into dropped segments are removed later, like all
    /// words that refer to no item. If `evict` is false, drops nothing, and returns whether
    /// `wanted` segments are free. Otherwise returns true.
    pub(super) fn make_room(
        table: &Table,
        found: &mut [SegmentFindings],
        wanted: usize,
        evict: bool,
    ) -> bool {
        let is_taken = |segment: u32| {
            use SegmentState::{Buckets, Chain, Ghosts, Open, Pages, Sealed, Tags, WriteBuffer};
            let state = table.entry(segment).state();
            [Buckets, Chain, Ghosts, WriteBuffer, Open, Pages, Sealed, Tags]
                .map(Some)
                .contains(&state)
        };
        let segments = 0..narrow(found.len());
        let is_fresh = |segment: &u32| table.entry(*segment).is(SegmentState::Fresh);
        let touched = segments.clone().filter(|segment| !is_fresh(segment)).count();
        let taken = segments.clone().filter(|segment| is_taken(*segment)).count();
        let free = (touched - taken) + table.layout.segments_first.saturating_sub(touched);
        if !evict {
            return free >= wanted;
        }
        let mut oldest: Vec<(Sequence, u32)> = segments
            .filter(|segment| {
                let state = found[*segment as usize].state;
                matches!(state, SegmentState::Sealed | SegmentState::WriteBuffer)
            })
            .map(|segment| (table.entry(segment).sequence().load(Ordering::Relaxed), segment))
            .collect();
        oldest.sort_unstable();
        for (_, segment) in oldest.into_iter().take(wanted.saturating_sub(free)) {
            table.entry(segment).restore_state(SegmentState::Free);
            let found = &mut found[segment as usize];
            (found.state, found.end) = (SegmentState::Free, table.layout.start(segment));
            found.is_suspect = false;
        }
        true
    }

    pub(super) fn entry(&self, segment: u32) -> Entry<'t> {
        self.table.entry(segment)
    }

    pub(super) fn record(&self, offset: usize) -> Record<'t> {
        Record::at(self.table, offset, self.cas, Witness::alone(self.table))
    }

    /// Marks the segments that handles were changing as suspect: their dead bytes have to be
    /// counted again. Schedules another search of the segments that handles were searching.
    pub(super) fn suspect_blocks(&mut self) {
        for number in 0..self.table.layout.blocks {
            let block = Block::new(self.table, number);
            if let Some(segment) = block.searched(self.table)
                && (segment as usize) < self.found.len()
            {
                // The process may have died during the search, so the segment is searched again.
                self.entry(segment).first_expiry().store(0, Ordering::Relaxed);
            }
            for segment in block.noted(self.table) {
                if let Some(found) = self.found.get_mut(segment as usize) {
                    found.is_suspect |= found.state == SegmentState::Sealed;
                }
            }
        }
        if self.table.header_page().uses.has_shared_block.load(Ordering::Relaxed) != 0 {
            let sealed = self.found.iter_mut().filter(|found| found.state == SegmentState::Sealed);
            sealed.for_each(|found| found.is_suspect = true);
        }
    }

    /// Returns the segment of an offset at which an item can start, or `None` if no item can start
    /// there.
    pub(super) fn segment_of(&self, offset: usize) -> Option<u32> {
        let layout = &self.table.layout;
        let is_in_segments = offset >= layout.start(0) && offset.is_multiple_of(8);
        let segment = is_in_segments.then(|| layout.segment_of(offset))?;
        let found = self.found.get(segment as usize)?;
        (offset < found.end).then_some(segment)
    }

    /// Returns whether the header of the record at `offset` is consistent.
    pub(super) fn is_valid(&self, offset: usize) -> bool {
        let Some(segment) = self.segment_of(offset) else { return false };
        self.has_fields(offset, self.found[segment as usize].end)
    }

    /// Returns whether an index word refers to a possible item in memory, or to a page on flash
    /// with items.
    pub(super) fn is_valid_word(&self, word: IndexWord) -> bool {
        if word.is_on_flash() { self.page_of(word).is_some() } else { self.is_valid(word.offset()) }
    }

    /// Returns the page of an index word that refers to flash, or `None` if the page has no items.
    pub(super) fn page_of(&self, word: IndexWord) -> Option<usize> {
        let page = self.flash?.page_of(word);
        let is_used = self.pages.get(page).is_some_and(|_| {
            let entry = Page::new(self.table, page);
            let has_items = [PageState::Open, PageState::Full, PageState::Emptying];
            entry.sequence() != 0 && has_items.contains(&entry.state())
        });
        is_used.then_some(page)
    }

    /// Returns whether a record could be at `offset`. The offset may be after the last counted
    /// record.
    pub(super) fn may_be_record(&self, offset: usize) -> bool {
        let layout = &self.table.layout;
        let segments = layout.start(0)..layout.start(narrow(self.found.len()));
        if !segments.contains(&offset) || !offset.is_multiple_of(8) {
            return false;
        }
        let segment = layout.segment_of(offset);
        self.has_fields(offset, layout.start(segment) + layout.segment_len)
    }

    /// Returns whether the bytes at `offset` can be a record that ends at or before `end`.
    fn has_fields(&self, offset: usize, end: usize) -> bool {
        let record = Record::candidate_at(self.table, offset, self.cas, Witness::alone(self.table));
        offset + record.len() <= end && record.is_plausible()
    }

    /// Returns the key of a possible record.
    pub(super) fn key(&self, offset: usize) -> &'t [u8] {
        Record::candidate_at(self.table, offset, self.cas, Witness::alone(self.table)).key()
    }

    /// Counts the index words that refer to each segment and page. Removes words that refer to no
    /// possible item or are in a wrong bucket. Returns the words that refer to suspect segments.
    pub(super) fn count_items(&mut self, index: &'t Index<Table>) -> Vec<Reference<'t>> {
        let mut references = Vec::new();
        index.retain_in_own_bucket(|slot, word| {
            if word.is_on_flash() {
                let page = self.page_of(word);
                if let Some(page) = page {
                    let len = self.flash.map_or(0, |format| format.counted_len(word));
                    let (items, bytes) = &mut self.pages[page];
                    (*items, *bytes) = (*items + 1, *bytes + len as u64);
                }
                return page.is_some();
            }
            let offset = word.offset();
            let Some(segment) = self.segment_of(offset) else { return false };
            let found = &mut self.found[segment as usize];
            found.items += 1;
            if found.is_suspect {
                references.push(Reference { offset, slot });
            }
            true
        });
        references
    }

    pub(super) fn items(&self) -> usize {
        let in_memory: usize = self.found.iter().map(|found| found.items as usize).sum();
        in_memory + self.pages.iter().map(|(items, _)| *items as usize).sum::<usize>()
    }
}
