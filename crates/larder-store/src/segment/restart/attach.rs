//! Using a region again that an earlier process has left, as it lies.
//!
//! The earlier process may have died at any point. What it had answered for is in the region: an item's
//! bytes are written before its index word, and the word before the answer. Of the changes that it was in
//! the middle of, at most one a thread, each is found done or not done, and what lies around them is
//! put in order:
//!
//! | left by a thread that died | what is done |
//! |---|---|
//! | a locked stripe, with a word in two places or in a bucket that was split | one word stays ([`Index::repair`]) |
//! | a new bucket before it counted | it is emptied |
//! | an open segment | it ends behind its last record with an index word, and the next handle that looks for one appends to it |
//! | a record without a word, dead bytes that were not counted | the segments that blocks name, those that were open and those that were being emptied are read, and their dead bytes counted again |
//! | a segment of items that leave for flash | it is written to flash again, with those items that index words refer to |
//! | a page on flash that was written to | what was written completely is found there, and the page is full |
//! | a chain that its record does not refer to, or not yet | the record under its owner's key decides |
//! | segments that were taken, or retired | they are free |
//! | no free segments for the flash tier that a start asks for | the oldest segments are given up |
//! | an item that was counted without its word, or the reverse | the items are the words, and are put right in one size class |
//!
//! Only the index is read as a whole, and of segments only those named above. So a start takes a few
//! milliseconds for a million items, and items are read when they are asked for.

use crate::eviction::{GhostClock, GhostEpoch, Sealed};
use crate::segment::cache::config::Config;
use crate::segment::cache::shared::{Shared, class_fingerprint, hash_of, narrow, stripes_for};
use crate::segment::flash::format::Format;
use crate::segment::flash::pages::{Lists, Page, PageState};
use crate::segment::index::buckets::Index;
use crate::segment::index::slot::Slot;
use crate::segment::item::header::State;
use crate::segment::item::record::{Record, Witness};
use crate::segment::memory::allocator::{Alloc, Queued, Use};
use crate::segment::memory::handle_block::Block;
use crate::segment::memory::header_page::Made;
use crate::segment::memory::open_segment::Open;
use crate::segment::memory::read_buffers;
use crate::segment::memory::table::{Entry, SegmentState, Sequence, Table};
use crate::segment::sync::{AtomicU64, Ordering};
use rapidhash::v3::RapidSecrets;

/// The region contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged(pub(crate) &'static str);

/// What was found of a segment.
#[derive(Clone, Copy, Debug)]
struct Found {
    state: SegmentState,
    /// Index words that refer to it.
    items: u32,
    /// The segments of chains of its items.
    chained: u32,
    /// Records may begin before this offset of the region.
    end: usize,
    /// Its dead bytes are counted again.
    is_suspect: bool,
    /// It was open.
    was_open: bool,
}

/// An index word into a segment whose dead bytes are counted again.
#[derive(Clone, Copy)]
struct Reference<'t> {
    offset: usize,
    word: &'t AtomicU64,
}

/// What was found in a region.
struct Survey<'t> {
    table: &'t Table,
    cas: bool,
    found: Vec<Found>,
    /// What items on flash are like, if there is flash.
    flash: Option<Format>,
    /// The items and bytes of each page, if the content of the flash is known.
    pages: Vec<(u32, u64)>,
}

/// A region that was put in order.
pub(crate) struct Attached {
    pub(crate) index: Index<Table>,
    pub(crate) alloc: Alloc,
    /// The number of items.
    pub(crate) items: usize,
    /// Whether a process had died in the middle of a change.
    pub(crate) was_repaired: bool,
    /// The pages of the flash, if its content is known.
    pub(crate) pages: Option<Lists>,
    /// Segments that are to be written to flash, each with the number of those of its large value.
    pub(crate) leaving: Vec<(u32, usize)>,
}

/// Puts a region in order that nobody uses. `free` says what its free segments are: in a copy, their memory
/// was never touched. `flash` says what items on flash are like, and `is_known` that index words may refer to
/// them.
///
/// # Errors
/// [`Damaged`]: it can't be used. Some of it may have been changed.
pub(crate) fn attach(
    table: Table,
    made: &Made,
    config: &Config,
    free: Use,
    (flash, is_known): (Option<Format>, bool),
) -> Result<Attached, Damaged> {
    let (page, layout) = (table.header_page(), table.layout);
    let len = usize::try_from(page.shared.index_len.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
    let buckets_max = layout.segments * layout.buckets_per_segment();
    if !(made.buckets_first..=buckets_max).contains(&len) || !made.buckets_first.is_power_of_two() {
        return Err(Damaged("the length of the index is out of range"));
    }
    let seen = usize::try_from(page.uses.segments_seen.load(Ordering::Relaxed));
    let seen = seen.ok().filter(|seen| *seen <= layout.segments);
    let seen = seen.ok_or(Damaged("the number of segments is out of range"))?;
    if page.flush_floor() > page.order.sequence.load(Ordering::Relaxed) {
        return Err(Damaged("a flush is of a later time"));
    }
    let was_running = page.uses.running.load(Ordering::Relaxed) != 0;
    let secrets = RapidSecrets::seed(made.seed);

    let mut found = Survey::states(&table, seen)?;
    let pages = flash.filter(|_| is_known).map_or(0, |format| format.pages);
    let indexing = Survey::restore_index_parts(&table, &found, len, pages)?;
    if let Some(format) = flash {
        let new_pages = if is_known { 0 } else { table.segments_for_pages(format.pages) };
        let wanted = new_pages + read_buffers::segments_for(&layout, layout.segments_first) + 1;
        Survey::make_room(&table, &mut found, wanted);
    }
    table.clear_bucket(len);
    let index = Index::over(table, made.buckets_first, stripes_for(made.buckets_first));
    let pages = vec![(0, 0); pages];
    let mut survey = Survey { table: &index.buckets, cas: made.cas, found, flash, pages };
    if was_running {
        survey.suspect_blocks();
        // A tag may have been dropped and not counted, so maintenance searches for its items.
        survey.table.header_page().tags.drops.fetch_add(1, Ordering::Relaxed);
    }
    let rehash = |slot: Slot| hash_of(&secrets, survey.record(slot.offset()).key());
    let repaired = index.repair(|slot| survey.is_valid_word(slot), rehash);
    let mut references = survey.count_items(&index);
    survey.count_dead(&mut references);
    let mut items = survey.items();
    items -= survey.keep_chains(&index, &secrets);
    let alloc = survey.alloc(config, indexing, free)?;
    let was_repaired = repaired > 0 || was_running;
    survey.restore_counts(config, items, &index);
    let pages = is_known.then(|| survey.restore_pages()).transpose()?;
    let leaving = (0..)
        .zip(&survey.found)
        .filter(|(_, found)| found.state == SegmentState::Leaving)
        .map(|(segment, found)| (segment, found.chained as usize))
        .collect();
    drop(references);
    Ok(Attached { index, alloc, items, was_repaired, pages, leaving })
}

impl<'t> Survey<'t> {
    /// The states of the first `seen` segments.
    fn states(table: &Table, seen: usize) -> Result<Vec<Found>, Damaged> {
        let layout = &table.layout;
        let found = (0..narrow(seen)).map(|segment| {
            let entry = table.entry(segment);
            let state = entry.state().ok_or(Damaged("a segment has no valid state"))?;
            let (start, written) = (layout.start(segment), entry.written());
            let written = written.load(Ordering::Relaxed) as usize;
            let end = match state {
                SegmentState::Sealed if written <= layout.segment_len => start + written,
                SegmentState::Sealed => return Err(Damaged("a segment has no valid length")),
                SegmentState::Open | SegmentState::Leaving => start + layout.segment_len,
                _ => start,
            };
            let is_odd = entry.is_closed() || entry.dead() as usize > written;
            let is_odd = state == SegmentState::Sealed && is_odd;
            let is_suspect = is_odd || matches!(state, SegmentState::Open | SegmentState::Leaving);
            let was_open = state == SegmentState::Open;
            Ok(Found { state, items: 0, chained: 0, end, is_suspect, was_open })
        });
        found.collect()
    }

    /// Finds the segments of the index, of ghosts and of tags again, and returns how many there are. Those that a
    /// process was about to add are free.
    fn restore_index_parts(
        table: &Table,
        found: &[Found],
        buckets: usize,
        pages: usize,
    ) -> Result<usize, Damaged> {
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
            return Err(Damaged("a part of the table of pages is missing"));
        }
        if !table.has_tag_parts(table.tag_buckets()) {
            return Err(Damaged("a part of the table of tags is missing"));
        }
        table.has_parts(buckets).then_some(parts).ok_or(Damaged("a part of the index is missing"))
    }

    /// Gives up the oldest segments of items unless `wanted` segments are free, so that a cache that was full
    /// can have a flash tier. Words that refer to what they held are removed like others that refer to nothing.
    fn make_room(table: &Table, found: &mut [Found], wanted: usize) {
        let is_taken = |segment: u32| {
            use SegmentState::{Buckets, Chain, Ghosts, Leaving, Open, Pages, Sealed, Tags};
            let state = table.entry(segment).state();
            [Buckets, Chain, Ghosts, Leaving, Open, Pages, Sealed, Tags].map(Some).contains(&state)
        };
        let segments = 0..narrow(found.len());
        let is_fresh = |segment: &u32| table.entry(*segment).is(SegmentState::Fresh);
        let touched = segments.clone().filter(|segment| !is_fresh(segment)).count();
        let taken = segments.clone().filter(|segment| is_taken(*segment)).count();
        let free = (touched - taken) + table.layout.segments_first.saturating_sub(touched);
        let mut oldest: Vec<(Sequence, u32)> = segments
            .filter(|segment| {
                let state = found[*segment as usize].state;
                matches!(state, SegmentState::Sealed | SegmentState::Leaving)
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
    }

    fn entry(&self, segment: u32) -> Entry<'t> {
        self.table.entry(segment)
    }

    fn record(&self, offset: usize) -> Record<'t> {
        Record::at(self.table, offset, self.cas, Witness::alone(self.table))
    }

    /// Suspects the segments that handles were changing.
    fn suspect_blocks(&mut self) {
        for number in 0..self.table.layout.blocks {
            let block = Block::new(self.table, number);
            if let Some(segment) = block.searched(self.table)
                && (segment as usize) < self.found.len()
            {
                // The search may not have come to its end.
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

    /// The segment of an offset at which an item can begin.
    fn segment_of(&self, offset: usize) -> Option<u32> {
        let layout = &self.table.layout;
        let is_in_segments = offset >= layout.start(0) && offset.is_multiple_of(8);
        let segment = is_in_segments.then(|| layout.segment_of(offset))?;
        let found = self.found.get(segment as usize)?;
        (offset < found.end).then_some(segment)
    }

    /// Whether the record at `offset` is one, as far as its header says.
    fn is_valid(&self, offset: usize) -> bool {
        let Some(segment) = self.segment_of(offset) else { return false };
        self.has_fields(offset, self.found[segment as usize].end)
    }

    /// Whether an index word refers to something that may be an item.
    fn is_valid_word(&self, slot: Slot) -> bool {
        if slot.is_on_flash() { self.page_of(slot).is_some() } else { self.is_valid(slot.offset()) }
    }

    /// The page of an index word that refers to flash, if there are items in it.
    fn page_of(&self, slot: Slot) -> Option<usize> {
        let page = self.flash?.page_of(slot);
        let is_used = self.pages.get(page).is_some_and(|_| {
            let entry = Page::new(self.table, page);
            let has_items = [PageState::Open, PageState::Full, PageState::Emptying];
            entry.sequence() != 0 && has_items.contains(&entry.state())
        });
        is_used.then_some(page)
    }

    /// Whether a record could be at `offset`, which may have been written behind those that count.
    fn may_be_record(&self, offset: usize) -> bool {
        let layout = &self.table.layout;
        let segments = layout.start(0)..layout.start(narrow(self.found.len()));
        if !segments.contains(&offset) || !offset.is_multiple_of(8) {
            return false;
        }
        let segment = layout.segment_of(offset);
        self.has_fields(offset, layout.start(segment) + layout.segment_len)
    }

    /// Whether what is at `offset` can be a record that ends before `end`.
    fn has_fields(&self, offset: usize, end: usize) -> bool {
        let record = Record::perhaps_at(self.table, offset, self.cas, Witness::alone(self.table));
        offset + record.len() <= end && record.is_plausible()
    }

    /// The key of what could be a record.
    fn key(&self, offset: usize) -> &'t [u8] {
        Record::perhaps_at(self.table, offset, self.cas, Witness::alone(self.table)).key()
    }

    /// Counts the index words into each segment, removes those that refer to no place of an item, and
    /// returns those into suspect segments.
    fn count_items(&mut self, index: &'t Index<Table>) -> Vec<Reference<'t>> {
        let mut references = Vec::new();
        index.retain_at_home(|word, slot| {
            if slot.is_on_flash() {
                let page = self.page_of(slot);
                if let Some(page) = page {
                    let len = self.flash.map_or(0, |format| format.counted_len(slot));
                    let (items, bytes) = &mut self.pages[page];
                    (*items, *bytes) = (*items + 1, *bytes + len as u64);
                }
                return page.is_some();
            }
            let offset = slot.offset();
            let Some(segment) = self.segment_of(offset) else { return false };
            let found = &mut self.found[segment as usize];
            found.items += 1;
            if found.is_suspect {
                references.push(Reference { offset, word });
            }
            true
        });
        references
    }

    /// Seals open segments, and counts the dead bytes of suspect ones.
    fn count_dead(&mut self, references: &mut [Reference<'t>]) {
        references.sort_unstable_by_key(|reference| reference.offset);
        for segment in 0..narrow(self.found.len()) {
            let found = self.found[segment as usize];
            if !found.is_suspect {
                continue;
            }
            let start = self.table.layout.start(segment);
            let place = start..start + self.table.layout.segment_len;
            let first = references.partition_point(|reference| reference.offset < place.start);
            let after = references.partition_point(|reference| reference.offset < place.end);
            let own = &references[first..after];
            if found.state == SegmentState::Leaving {
                self.restore_leaving(segment, own);
                continue;
            }
            let end = match (found.state, own.last()) {
                (SegmentState::Open, None) => start,
                (SegmentState::Open, Some(last)) if self.is_valid(last.offset) => {
                    last.offset + self.record(last.offset).len()
                }
                _ => found.end,
            };
            let dead = self.dead_bytes(start, end, own);
            if dead.is_none() {
                own.iter().for_each(|reference| reference.word.store(0, Ordering::Relaxed));
            }
            let entry = self.entry(segment);
            let found = &mut self.found[segment as usize];
            match dead {
                Some(dead) if end > start => {
                    let written = u32::try_from(end - start).expect("a segment is short");
                    entry.written().store(written, Ordering::Relaxed);
                    entry.restore_dead(dead);
                    entry.restore_state(SegmentState::Sealed);
                    (found.state, found.end) = (SegmentState::Sealed, end);
                }
                _ => {
                    entry.restore_state(SegmentState::Free);
                    (found.state, found.items, found.end) = (SegmentState::Free, 0, start);
                }
            }
        }
    }

    /// Makes a segment of items that leave ready to be written again. It ends behind the last record with an
    /// index word, and records without one are marked dead. It is free if there are none, or no flash.
    fn restore_leaving(&mut self, segment: u32, references: &[Reference<'_>]) {
        let start = self.table.layout.start(segment);
        let found = self.found[segment as usize];
        let mut wanted = references.iter().peekable();
        let (mut at, mut end) = (start, None);
        while let (Some(format), true) = (self.flash, wanted.peek().is_some()) {
            if !self.is_valid(at) {
                break;
            }
            let record = self.record(at);
            if wanted.next_if(|reference| reference.offset == at).is_none() {
                record.restore_dead();
            }
            at += format.len_of(record.header);
            end = wanted.peek().is_none().then_some(at);
        }
        let end = end.filter(|end| *end <= found.end);
        let entry = self.entry(segment);
        let found = &mut self.found[segment as usize];
        if let Some(end) = end {
            let written = u32::try_from(end - start).expect("a segment is short");
            entry.written().store(written, Ordering::Relaxed);
            entry.leases().store(0, Ordering::Relaxed);
            found.end = end;
        } else {
            references.iter().for_each(|reference| reference.word.store(0, Ordering::Relaxed));
            entry.restore_state(SegmentState::Free);
            (found.state, found.items, found.end) = (SegmentState::Free, 0, start);
        }
    }

    /// The pages of the flash, in the order in which they were written.
    fn restore_pages(&self) -> Result<Lists, Damaged> {
        let next = self.table.header_page().order.sequence.load(Ordering::Relaxed);
        let (mut free, mut full) = (Vec::new(), Vec::new());
        for (number, (items, bytes)) in self.pages.iter().enumerate().rev() {
            let (page, number) = (Page::new(self.table, number), narrow(number));
            page.restore(*items, *bytes);
            match page.state() {
                PageState::Free => free.push(number),
                PageState::Bad => (),
                _ => full.push((page.sequence(), number)),
            }
            if page.sequence() >= next {
                return Err(Damaged("a page is of a later time"));
            }
        }
        full.sort_unstable();
        for (_, number) in &full {
            Page::new(self.table, *number as usize).set_state(PageState::Full);
        }
        let full = full.into_iter().map(|(_, number)| number).collect();
        Ok(Lists::restored(free, full))
    }

    /// The bytes of dead records in a place that is full of records. Those without an index word are
    /// marked dead. `None` if there is something else than records, or a word refers to none.
    fn dead_bytes(&self, start: usize, end: usize, references: &[Reference<'_>]) -> Option<u32> {
        let mut references = references.iter().peekable();
        let (mut at, mut dead) = (start, 0);
        while at < end {
            let record = self.record(at);
            // The place of a dead record may have been half overwritten by one that was never published. It still
            // ends where its header says, but the words behind that are of both.
            let is_dead_place = record.header.has(State::Dead)
                && record.header.key_len() > 0
                && at + record.len() <= end;
            if !is_dead_place && !self.is_valid(at) {
                return None;
            }
            let is_live = references.next_if(|reference| reference.offset == at).is_some();
            let is_dead = record.header.has(State::Dead);
            match (is_live, is_dead) {
                (true, true) => return None,
                (true, false) => (),
                (false, _) => {
                    record.restore_dead();
                    dead += record.len();
                }
            }
            at += record.len();
        }
        (at == end && references.next().is_none()).then(|| u32::try_from(dead).ok()).flatten()
    }

    fn items(&self) -> usize {
        let in_memory: usize = self.found.iter().map(|found| found.items as usize).sum();
        in_memory + self.pages.iter().map(|(items, _)| *items as usize).sum::<usize>()
    }

    /// Keeps the chains that items refer to, and frees the segments of others. Returns how many items were
    /// removed because some of their chain is not there.
    fn keep_chains(&mut self, index: &Index<Table>, secrets: &RapidSecrets) -> usize {
        let segments = 0..narrow(self.found.len());
        let mut is_kept = vec![false; self.found.len()];
        let mut removed = 0;
        for first in segments.clone() {
            if self.found[first as usize].state != SegmentState::Chain {
                continue;
            }
            let owner = self.entry(first).owner().filter(|offset| self.may_be_record(*offset));
            let Some(key) = owner.map(|offset| self.key(offset)) else { continue };
            let hash = hash_of(secrets, key);
            let named = index.lookup(hash, |_, slot| {
                let record = self.is_valid(slot.offset()).then(|| self.record(slot.offset()))?;
                let is_owner = record.key() == key;
                let chain = record.chain().filter(|chain| is_owner && chain.first == first)?;
                Some((record, chain))
            });
            let Some((record, _)) = named else { continue };
            let wanted = record.chain_segments(self.table.layout.segment_len);
            let chain = self.chain(first, wanted, &is_kept);
            let holder = record.segment() as usize;
            if let Some(chain) = chain {
                chain.iter().for_each(|segment| is_kept[*segment as usize] = true);
                if let Some(last) = chain.last() {
                    self.entry(*last).next().store(0, Ordering::Relaxed);
                }
                self.found[holder].chained += narrow(chain.len());
                self.entry(first).set_owner(record.offset);
            } else {
                let stripe = index.lock(hash);
                if let Some(place) = stripe.find(|slot| slot.offset() == record.offset) {
                    stripe.remove(&place);
                    record.mark_dead();
                    self.found[holder].items -= 1;
                    removed += 1;
                }
            }
        }
        for segment in segments {
            if self.found[segment as usize].state != SegmentState::Chain {
                continue;
            }
            let entry = self.entry(segment);
            if is_kept[segment as usize] {
                entry.leases().store(0, Ordering::Relaxed);
            } else {
                entry.restore_state(SegmentState::Free);
                self.found[segment as usize].state = SegmentState::Free;
            }
        }
        removed
    }

    /// The first `wanted` segments of a chain, none of which belongs to another; `None` if it is shorter.
    fn chain(&self, first: u32, wanted: usize, is_kept: &[bool]) -> Option<Vec<u32>> {
        let mut chain = Vec::with_capacity(wanted);
        let mut next = Some(first);
        while chain.len() < wanted {
            let segment = next?;
            let found = self.found.get(segment as usize)?;
            let is_usable = found.state == SegmentState::Chain
                && !is_kept[segment as usize]
                && !chain.contains(&segment);
            if !is_usable {
                return None;
            }
            chain.push(segment);
            next = self.entry(segment).next().load(Ordering::Relaxed).checked_sub(1);
        }
        Some(chain)
    }

    /// Makes sure that a free segment has memory, which may have been given back just before its state was
    /// changed.
    fn restore_free(&self, segment: u32, free: Use) -> Use {
        let (entry, layout) = (self.entry(segment), &self.table.layout);
        let (start, len) = (layout.start(segment), layout.segment_len);
        if free == Use::Untouched {
            entry.restore_state(SegmentState::Fresh);
            return free;
        }
        let region = &self.table.region;
        if region.commit(start, len).is_err() && layout.has_whole_pages {
            // SAFETY: nobody uses the segment, and it begins and ends at pages.
            let is_zero = unsafe { region.discard(start, len) };
            if is_zero {
                entry.restore_state(SegmentState::Fresh);
                return Use::Untouched;
            }
        }
        entry.restore_state(SegmentState::Free);
        Use::Free
    }

    /// An allocator with all sealed segments queued in the order in which they were opened.
    fn alloc(&self, config: &Config, indexing: usize, free: Use) -> Result<Alloc, Damaged> {
        let (table, layout) = (self.table, &self.table.layout);
        let page = table.header_page();
        let mut uses: Vec<Use> = (0..)
            .zip(&self.found)
            .map(|(segment, found)| match found.state {
                SegmentState::Fresh => Use::Untouched,
                SegmentState::Sealed | SegmentState::Chain | SegmentState::Leaving => Use::Taken,
                _ if table.entry(segment).is(SegmentState::Pages) => Use::Taken,
                _ if table.entry(segment).is(SegmentState::Tags) => Use::Taken,
                _ if table.entry(segment).is(SegmentState::Buckets) => Use::Taken,
                _ if table.entry(segment).is(SegmentState::Ghosts) => Use::Taken,
                _ => Use::Free,
            })
            .collect();
        for (segment, used) in (0..).zip(&mut uses) {
            if *used == Use::Free {
                *used = self.restore_free(segment, free);
            }
        }
        let epoch = u8::try_from(page.order.ghost_epoch.load(Ordering::Relaxed));
        let ghosts = GhostClock::new(GhostEpoch::from_index(epoch.unwrap_or_default()));
        let (limit, segments) = (narrow(layout.segments_first), narrow(layout.segments));
        let mut alloc = Alloc::restored(limit, segments, config.size_exponent, &uses, ghosts);
        alloc.indexing = indexing;
        let mut sealed: Vec<(u64, u32)> = (0..)
            .zip(&self.found)
            .filter(|(_, found)| found.state == SegmentState::Sealed)
            .map(|(segment, _)| (table.entry(segment).sequence().load(Ordering::Relaxed), segment))
            .collect();
        sealed.sort_unstable();
        let next = page.order.sequence.load(Ordering::Relaxed);
        if sealed.last().is_some_and(|(sequence, _)| *sequence >= next) {
            return Err(Damaged("a segment is of a later time"));
        }
        for (_, segment) in sealed {
            let (entry, found) = (table.entry(segment), &self.found[segment as usize]);
            entry.leases().store(0, Ordering::Relaxed);
            entry.reopen();
            let written = entry.written().load(Ordering::Relaxed);
            let live = written.saturating_sub(entry.dead()) as usize;
            let chained = found.chained as usize * layout.segment_len;
            let (kind, base) = (entry.kind(), entry.base());
            let (queue, sequence) = (kind.queue, entry.sequence().load(Ordering::Relaxed));
            alloc.queues.add_chain(segment, queue, found.chained);
            if found.was_open {
                entry.restore_state(SegmentState::Open);
                let (at, end) = (found.end, layout.start(segment) + layout.segment_len);
                let (chained, items) = (found.chained as usize, found.items);
                let open =
                    Open { segment, kind, sequence, base, at, end, noted: None, chained, items };
                alloc.orphans.push(open);
                alloc.open += 1;
                continue;
            }
            let (bytes, items) = ((live + chained) as u64, found.items);
            alloc.enqueue(Queued::of(table, segment), Sealed { queue, bytes, items });
        }
        alloc.note_flush(page.flush_floor());
        Ok(alloc)
    }

    /// Makes the counts of items by size agree with the number of items. If they can't be relied on, all
    /// items are read.
    fn restore_counts(&self, config: &Config, items: usize, index: &Index<Table>) {
        let (table, uses) = (self.table, &self.table.header_page().uses);
        let blocks = || (0..table.layout.blocks).map(|number| Block::new(table, number));
        let classes = config.classes.count();
        let sum = |class| {
            blocks()
                .map(|block| block.counts(table, class))
                .fold([0_u64; 2], |sum, counts| [0, 1].map(|i| sum[i].wrapping_add(counts[i])))
        };
        let mut sums: Vec<[u64; 2]> = (0..classes).map(sum).collect();
        let counted = sums.iter().fold(0_u64, |all, [items, _]| all.wrapping_add(*items));
        let off = (items as u64).wrapping_sub(counted).cast_signed();
        let fingerprint = class_fingerprint(&config.classes);
        let is_known = uses.classes.load(Ordering::Relaxed) == fingerprint;
        if !is_known || off.unsigned_abs() > table.layout.blocks as u64 {
            sums.fill([0; 2]);
            index.retain(|_, slot| {
                if slot.is_on_flash() {
                    let [count, sum] = &mut sums[0];
                    *count += 1;
                    *sum += self.flash.map_or(0, |format| format.counted_len(slot)) as u64;
                    return true;
                }
                let record = self.record(slot.offset());
                let (key_len, value_len) = (record.key().len(), record.value_len());
                let bytes = config.classes.footprint(key_len, value_len, record.client_flags());
                let [count, sum] = &mut sums[config.classes.class_of(bytes)];
                *count += 1;
                *sum += bytes as u64;
                true
            });
        } else if let Some(largest) = sums.iter_mut().max_by_key(|[items, _]| items.cast_signed()) {
            let [count, bytes] = *largest;
            let mean = bytes / count.max(1);
            let added = mean.wrapping_mul(off.cast_unsigned());
            *largest = [count.wrapping_add_signed(off), bytes.wrapping_add(added)];
        }
        // If this process dies here, the next one reads all items.
        uses.classes.store(0, Ordering::Release);
        for (i, block) in blocks().enumerate() {
            for (class, sum) in sums.iter().enumerate() {
                block.set_counts(table, class, if i == 0 { *sum } else { [0; 2] });
            }
        }
        uses.classes.store(fingerprint, Ordering::Release);
        uses.has_shared_block.store(0, Ordering::Relaxed);
    }
}

impl Shared {
    /// Has the system map the memory of all items, which takes a while.
    pub(crate) fn populate(&self) {
        let (table, layout) = (self.table(), &self.table().layout);
        let seen = table.header_page().uses.segments_seen.load(Ordering::Relaxed);
        let is_used = |segment: &u32| {
            let state = table.entry(*segment).state();
            !matches!(state, None | Some(SegmentState::Fresh))
        };
        for segment in (0..u32::try_from(seen).unwrap_or(0)).filter(is_used) {
            table.region.populate(layout.start(segment), layout.segment_len);
        }
    }
}
