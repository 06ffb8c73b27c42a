//! The pages on flash: an entry per page in the region, and the lists of free and full pages.
//!
//! ```text
//!   Free ──▶ Open (blocks are written to it) ──▶ Full ──▶ Emptying (its words are removed) ──▶ Free
//!    ▲                                            ▲          │ │
//!    │                                            └──────────┘ │
//!    └──────────────────────── Resting ◀──────────────────────┘
//! ```
//! A page that could not be emptied becomes Full again. After a failed write to a page, or too many
//! failed reads, the page keeps its remaining items until it is emptied. The page then rests for
//! some time before it is used again.

use crate::segment::memory::table::{Sequence, Table};
use crate::segment::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{Expiry, Seconds};
use std::collections::{HashMap, VecDeque};

/// The state of a page; see the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum PageState {
    Free = 0,
    Open,
    Full,
    Emptying,
    /// The page is empty, but a write to it or too many reads of it have failed. It becomes free
    /// some time later, or at a restart.
    Resting,
}

/// Access to the entry of a page in the region.
#[derive(Clone, Copy)]
pub(crate) struct Page<'t> {
    table: &'t Table,
    at: usize,
}

impl<'t> Page<'t> {
    pub(crate) fn new(table: &'t Table, page: usize) -> Self {
        Self { table, at: table.page_entry(page) }
    }

    fn half(&self, i: usize) -> &'t AtomicU32 {
        self.table.region.half(self.at + 4 * i)
    }

    fn word(&self, i: usize) -> &'t AtomicU64 {
        self.table.region.word(self.at + 8 * i)
    }

    /// Returns the sequence that the page received when it was opened, or 0 while the page is free.
    pub(crate) fn sequence(&self) -> Sequence {
        self.word(0).load(Ordering::Acquire)
    }

    /// Returns the second at which the page was opened.
    pub(crate) fn base(&self) -> Seconds {
        Seconds(self.half(2).load(Ordering::Relaxed))
    }

    pub(crate) fn state(&self) -> PageState {
        use PageState::{Emptying, Free, Full, Open, Resting};
        let states = [Free, Open, Full, Emptying, Resting];
        states.get(self.half(3).load(Ordering::Acquire) as usize).copied().unwrap_or(Resting)
    }

    pub(crate) fn set_state(&self, state: PageState) {
        self.half(3).store(state as u32, Ordering::Release);
    }

    /// Returns the number of index words that refer to the page.
    pub(crate) fn items(&self) -> u32 {
        self.half(4).load(Ordering::Acquire)
    }

    /// Returns the number of the page's items that were hit since they were written.
    pub(crate) fn hits(&self) -> &'t AtomicU32 {
        self.half(5)
    }

    /// Returns the total length, in bytes, that counters record for the page's items; see
    /// `Format::counted_len`.
    pub(crate) fn bytes(&self) -> u64 {
        self.word(3).load(Ordering::Relaxed)
    }

    /// Returns the second by which all items of the page have expired; `u32::MAX` if some never
    /// expire.
    pub(crate) fn last_expiry(&self) -> u32 {
        self.half(8).load(Ordering::Relaxed)
    }

    /// Returns the number of blocks that were reserved in the page for writes.
    pub(crate) fn blocks(&self) -> &'t AtomicU32 {
        self.half(9)
    }

    /// Returns the number of reads from the page that are under way or whose items are in use, plus
    /// the number of writes to the page that are under way. The page is not overwritten before all
    /// of them have ended.
    pub(crate) fn reads(&self) -> &'t AtomicU32 {
        self.half(10)
    }

    /// Returns the number of failed reads of the page. After a failed write, the number is
    /// `u32::MAX / 2` or more.
    pub(crate) fn errors(&self) -> &'t AtomicU32 {
        self.half(11)
    }

    /// Returns the number of the page's items that were copied to memory and have not returned to
    /// the page. An eviction of an unchanged copy returns the item without a write. Copies that
    /// were changed or removed after they were made still count.
    pub(crate) fn copies(&self) -> &'t AtomicU32 {
        self.half(13)
    }

    /// Returns the page's bucket in memcached's numbering: see [`crate::FlashPage::bucket`].
    pub(crate) fn public_bucket(&self) -> u8 {
        if self.bucket().load(Ordering::Relaxed) == 0 { 0 } else { 3 }
    }

    pub(crate) fn bucket(&self) -> &'t AtomicU32 {
        self.half(12)
    }

    /// Records that one more index word refers to the page. `bytes` is the counted length of its
    /// item.
    pub(crate) fn add(&self, bytes: usize, expiry: Expiry) {
        let last = expiry.second().map_or(u32::MAX, |at| at.0);
        self.half(8).fetch_max(last, Ordering::Relaxed);
        self.half(4).fetch_add(1, Ordering::AcqRel);
        self.word(3).fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records that an index word no longer refers to the page. `bytes` is the counted length of
    /// its item.
    pub(crate) fn remove(&self, bytes: usize) {
        self.word(3).fetch_sub(bytes as u64, Ordering::Relaxed);
        self.half(4).fetch_sub(1, Ordering::AcqRel);
    }

    /// Sets the counts after a restart, when no reads are under way.
    pub(crate) fn restore(&self, items: u32, bytes: u64) {
        self.half(4).store(items, Ordering::Relaxed);
        self.word(3).store(bytes, Ordering::Relaxed);
        self.reads().store(0, Ordering::Relaxed);
        self.errors().store(0, Ordering::Relaxed);
    }

    fn open(&self, sequence: Sequence, now: Seconds, bucket: u32) {
        self.half(2).store(now.0, Ordering::Relaxed);
        let counts = [self.half(4), self.hits(), self.blocks(), self.errors(), self.copies()];
        for half in counts.into_iter().chain([self.half(8)]) {
            half.store(0, Ordering::Relaxed);
        }
        self.bucket().store(bucket, Ordering::Relaxed);
        self.word(3).store(0, Ordering::Relaxed);
        self.word(0).store(sequence, Ordering::Release);
        self.set_state(PageState::Open);
    }

    fn free(&self) {
        self.set_state(PageState::Free);
        self.word(0).store(0, Ordering::Release);
    }
}

/// The number of buckets. Each bucket has pages of its own. Bucket 1 is for items that expire soon,
/// and bucket 0 for all other items.
pub(crate) const BUCKETS: usize = 2;

/// The free pages, and the full pages in the order in which they were filled.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    free: Vec<u32>,
    /// The full pages in the order in which they were filled. A page that could not be emptied is
    /// put back at the front.
    full: VecDeque<u32>,
    /// The open page of each bucket, and the next block in it. `None` if the bucket has no open
    /// page.
    open: [Option<(u32, u32)>; BUCKETS],
    /// The resting pages, each with the second at which it becomes free.
    resting: Vec<(u32, Seconds)>,
    /// How often each page has rested since the start.
    rests: HashMap<u32, u32>,
}

/// The duration in seconds of a page's first rest. Each further rest is twice as long, up to
/// [`REST_MAX`].
const REST: u32 = 10;
/// The maximum duration of a rest in seconds.
const REST_MAX: u32 = 3600;

impl Lists {
    /// Returns the lists of a tier whose pages are all free.
    pub(crate) fn new(pages: u32) -> Self {
        Self { free: (0..pages).rev().collect(), ..Self::default() }
    }

    /// Returns the lists after a restart. `full` is in the order in which the pages were opened.
    pub(crate) fn restored(free: Vec<u32>, full: VecDeque<u32>) -> Self {
        Self { free, full, ..Self::default() }
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn full(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.full.iter().copied()
    }

    /// Reserves the next `count` blocks of a bucket's open page, and returns the page and the first
    /// block. A page has `blocks` blocks. Returns `None` if the bucket has no open page. If the
    /// open page has fewer than `count` blocks left, or if its sequence is below `floor`, marks the
    /// page full and returns `None`.
    pub(crate) fn next_blocks(
        &mut self,
        table: &Table,
        bucket: usize,
        (count, blocks): (u32, u32),
        floor: Sequence,
    ) -> Option<(u32, u32)> {
        let (page, block) = self.open[bucket]?;
        if block + count > blocks || Page::new(table, page as usize).sequence() < floor {
            Page::new(table, page as usize).set_state(PageState::Full);
            self.full.push_back(page);
            self.open[bucket] = None;
            return None;
        }
        self.open[bucket] = Some((page, block + count));
        let entry = Page::new(table, page as usize);
        entry.blocks().store(block + count, Ordering::Relaxed);
        // Keeps the page from being emptied until these writes have ended.
        entry.reads().fetch_add(1, Ordering::AcqRel);
        Some((page, block))
    }

    /// Opens a free page for a bucket. Returns false if no page is free.
    pub(crate) fn open(
        &mut self,
        table: &Table,
        bucket: usize,
        sequence: Sequence,
        now: Seconds,
    ) -> bool {
        let Some(page) = self.free.pop() else { return false };
        let number = u32::try_from(bucket).expect("few buckets");
        Page::new(table, page as usize).open(sequence, now, number);
        self.open[bucket] = Some((page, 0));
        true
    }

    /// Closes an open page, because writing to it failed. Its earlier blocks stay in use.
    pub(crate) fn abandon(&mut self, table: &Table, page: u32) {
        if let Some(open) = self.open.iter_mut().find(|open| open.is_some_and(|(p, _)| p == page)) {
            *open = None;
            Page::new(table, page as usize).set_state(PageState::Full);
            self.full.push_back(page);
        }
    }

    /// Removes a page from the list of full pages, and marks it as being emptied.
    pub(crate) fn take(&mut self, table: &Table, page: u32) {
        self.full.retain(|other| *other != page);
        Page::new(table, page as usize).set_state(PageState::Emptying);
    }

    /// Puts a page that could not be emptied back at the front of the full pages.
    pub(crate) fn put_back(&mut self, table: &Table, page: u32) {
        Page::new(table, page as usize).set_state(PageState::Full);
        self.full.push_front(page);
    }

    /// Frees an emptied page.
    pub(crate) fn give_back(&mut self, table: &Table, page: u32) {
        Page::new(table, page as usize).free();
        // The most recently freed page is reused last, so that all pages wear evenly.
        self.free.insert(0, page);
    }

    /// Marks an emptied page as resting, because a write to it or too many reads of it have failed.
    /// [`Lists::end_rests`] frees it later.
    pub(crate) fn rest(&mut self, table: &Table, page: u32, now: Seconds) {
        let entry = Page::new(table, page as usize);
        entry.free();
        entry.set_state(PageState::Resting);
        let rests = self.rests.entry(page).or_default();
        let time = (REST << *rests).min(REST_MAX);
        *rests = (*rests + 1).min(REST_MAX.ilog2());
        self.resting.push((page, Seconds(now.0.saturating_add(time))));
    }

    /// Frees the pages that have rested long enough.
    pub(crate) fn end_rests(&mut self, table: &Table, now: Seconds) {
        for (page, _) in self.resting.extract_if(.., |(_, until)| *until <= now) {
            Page::new(table, page as usize).free();
            self.free.insert(0, page);
        }
    }
}
