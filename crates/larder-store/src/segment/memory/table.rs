//! The segment table, with the state of each segment in one cache line of the region, and the
//! growing arrays (buckets, ghosts, pages, tags), which are in segments of their own.
//!
//! ```text
//!   Fresh ──▶ Taken                                     never used, or given back to the system
//!
//!          take()           open()           seal()            retire()          epoch passes
//!   Free ─────────▶ Taken ─────────▶ Open ─────────▶ Sealed ─────────────▶ Retired ─────────▶ Free
//!                     │                                                       ▲
//!                     ├──▶ Chain (of a large value) ───────── retire() ───────┘
//!                     ├──▶ WriteBuffer ── written to flash, then retire() ─────┘
//!                     └──▶ Buckets, Ghosts, Pages, ReadBuffers, Tags (permanently)
//! ```
//! A segment that is being cleaned or evicted stays Sealed, but is in no queue: the handle that
//! empties it owns it. An upload's segments are Taken until its value is stored. The segments of a
//! chain that was retired stay in the state Chain until they are Free.

use super::header_page::HeaderPage;
use super::layout::{BUCKET_LEN, GHOSTS_LEN, Layout, PAGE_ENTRY_LEN, TAG_BUCKET_LEN};
use super::raw::Region;
use crate::eviction::{Kind, Queue, SizeClass};
use crate::segment::index::buckets::{BUCKET_SLOTS, Buckets};
use crate::segment::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::{Expiry, Seconds};
use std::io;

/// The use of a segment; see the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum SegmentState {
    /// The memory reads as zeroes: the system has not provided it yet, or it was returned to the
    /// system.
    Fresh = 0,
    Free,
    Taken,
    Open,
    Sealed,
    Retired,
    Chain,
    Buckets,
    Ghosts,
    /// A segment of items that are demoted to flash: a handle appends to it, it waits for its
    /// write, or its items are moving to flash.
    WriteBuffer,
    /// A part of the table of pages on flash.
    Pages,
    /// A segment of buffers for reads from flash.
    ReadBuffers,
    /// A part of the tag table.
    Tags,
}

impl SegmentState {
    /// Returns the states from which a segment may enter this state.
    fn predecessors(self) -> &'static [Self] {
        match self {
            // A free segment becomes fresh when its memory was returned to the system.
            Self::Fresh => &[Self::Fresh, Self::Free],
            // A segment that enters another state right after it was taken skips this state.
            Self::Taken => &[Self::Fresh, Self::Free],
            Self::Open
            | Self::Buckets
            | Self::Ghosts
            | Self::WriteBuffer
            | Self::Pages
            | Self::Tags
            | Self::ReadBuffers => &[Self::Fresh, Self::Free, Self::Taken],
            Self::Sealed => &[Self::Open],
            Self::Retired => &[Self::Sealed, Self::WriteBuffer],
            // A chain that could not be published is linked again, in the same state.
            Self::Chain => &[Self::Taken, Self::Chain],
            Self::Free => &[
                Self::Retired,
                Self::Chain,
                Self::Taken,
                Self::Free,
                Self::Fresh,
                Self::ReadBuffers,
            ],
        }
    }
}

/// The table entry of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'r> {
    region: &'r Region,
    at: usize,
    first_hits: usize,
}

/// The position of a segment in the order in which segments were opened. A flush invalidates the
/// items of segments with lower sequences than its floor.
pub(crate) type Sequence = u64;

impl<'r> Entry<'r> {
    /// In a chain's first segment, returns the word that contains the offset of the chain's record.
    /// The offset is stored after the record was written and before the record's index word. In the
    /// other segments of a chain, the word is 0.
    fn owner_word(&self) -> &'r AtomicU64 {
        self.sequence()
    }

    /// If a chain starts in this segment, returns the offset of the chain's record. Otherwise,
    /// returns `None`.
    pub(crate) fn owner(&self) -> Option<usize> {
        let owner = self.owner_word().load(Ordering::Acquire);
        usize::try_from(owner & !OWNED).ok().filter(|_| owner & OWNED != 0)
    }

    /// Sets the owner of the chain that starts in this segment: the offset of the chain's record.
    pub(crate) fn set_owner(&self, offset: usize) {
        self.owner_word().store(OWNED | offset as u64, Ordering::Release);
    }

    /// Records that no chain starts in this segment.
    pub(crate) fn clear_owner(&self) {
        self.owner_word().store(0, Ordering::Relaxed);
    }

    /// In a chain's first segment, returns the word that contains the item's copy on flash
    /// (`FlashCopy::chain_word`), or 0 if there is no copy. In a segment of items, the same word
    /// counts the dead items.
    pub(crate) fn chain_copy(&self) -> &'r AtomicU64 {
        self.dead_word()
    }

    fn half(&self, i: usize) -> &'r AtomicU32 {
        self.region.half(self.at + 4 * i)
    }

    /// Returns the segment's sequence, assigned when it was opened, or 0 if it never held items. In
    /// a chain, the same word contains the owner (see [`Entry::owner_word`]).
    #[inline]
    pub(crate) fn sequence(&self) -> &'r AtomicU64 {
        self.region.word(self.at)
    }

    /// Returns the base of expiry and access codes: one second before the segment was opened. For a
    /// segment of read buffers, it is the time at which the first buffer was taken.
    #[inline]
    pub(crate) fn base(&self) -> Seconds {
        Seconds(self.half(2).load(Ordering::Relaxed))
    }

    /// Returns the total length of the segment's records in bytes. The length is set when the
    /// segment is sealed, or queued to be written to flash.
    pub(crate) fn written(&self) -> &'r AtomicU32 {
        self.half(3)
    }

    /// Returns the word with three fields. The low 31 bits contain the total length of the dead
    /// items in bytes. The next bit is [`CLOSED`]. The high 32 bits count the dead records that
    /// were taken.
    fn dead_word(&self) -> &'r AtomicU64 {
        self.region.word(self.at + 16)
    }

    /// Returns the total length of the dead items in bytes.
    pub(crate) fn dead(&self) -> u32 {
        dead_bytes(self.dead_word().load(Ordering::Acquire))
    }

    /// Returns the total length of the dead items in bytes. A thread that changes the total after
    /// this call sees all earlier writes of the calling thread.
    pub(crate) fn dead_before_changes(&self) -> u32 {
        dead_bytes(self.dead_word().fetch_add(0, Ordering::AcqRel))
    }

    /// Adds to the total length of the dead items, and returns the previous total.
    #[inline]
    pub(crate) fn add_dead(&self, len: u32) -> u32 {
        dead_bytes(self.dead_word().fetch_add(len.into(), Ordering::AcqRel))
    }

    /// Takes a dead record of `len` bytes, so that another record can overwrite it. Subtracts `len`
    /// from the total length of the dead items, and returns the previous total. `sequence` is the
    /// segment's sequence at the time when the record died. Returns `None` if the segment is being
    /// emptied, or was emptied after the record died.
    ///
    /// A sealed segment is retired only when all of its bytes are dead. So a segment with a new
    /// record is not retired before that record is dead.
    #[inline]
    pub(crate) fn take_dead(&self, sequence: Sequence, len: u32) -> Option<u32> {
        if self.sequence().load(Ordering::Relaxed) != sequence {
            return None;
        }
        let taken = |word: u64| {
            let may = word & CLOSED == 0 && dead_bytes(word) >= len;
            may.then(|| word.wrapping_add(TAKEN_ONE) - u64::from(len))
        };
        let word =
            self.dead_word().fetch_update(Ordering::AcqRel, Ordering::Acquire, taken).ok()?;
        if self.sequence().load(Ordering::Acquire) != sequence {
            // The segment was emptied and opened again since the first check. The segment could not
            // be retired again before this addition, because too few of its bytes counted as dead.
            // If the segment belongs to a chain now, the word has another meaning, so both changes
            // are undone.
            let undone = u64::from(len).wrapping_sub(TAKEN_ONE);
            self.dead_word().fetch_add(undone, Ordering::AcqRel);
            return None;
        }
        Some(dead_bytes(word))
    }

    /// Returns the number of dead records that were taken. An offset in a segment refers to the
    /// same record while neither the sequence nor this number changes.
    pub(crate) fn taken_dead(&self) -> u64 {
        self.dead_word().load(Ordering::Acquire) / TAKEN_ONE
    }

    /// Makes [`Entry::take_dead`] fail from now on, because the segment is being emptied.
    pub(crate) fn close(&self) {
        self.dead_word().fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Returns whether [`Entry::take_dead`] fails.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.dead_word().load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Undoes [`Entry::close`].
    pub(crate) fn reopen(&self) {
        self.dead_word().fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Returns a second before which no live item of the segment expires, or `u32::MAX` if none
    /// expires. While maintenance searches the segment, the bound covers only the items whose
    /// expiry was noted since the search started.
    pub(crate) fn first_expiry(&self) -> &'r AtomicU32 {
        self.half(13)
    }

    /// Returns the second by which all items of the segment have expired; `u32::MAX` if some never
    /// expire.
    pub(crate) fn last_expiry(&self) -> &'r AtomicU32 {
        self.half(6)
    }

    /// Returns whether all items of the segment have an expiry.
    pub(crate) fn may_all_expire(&self) -> bool {
        self.last_expiry().load(Ordering::Relaxed) != u32::MAX
    }

    /// Returns the next segment of a chain plus one, or 0 at its end.
    pub(crate) fn next(&self) -> &'r AtomicU32 {
        self.half(7)
    }

    /// Returns the word that counts the leases on a chain that starts in this segment, or on values
    /// whose tail is in this segment. The low 32 bits contain the number of leases. Above them is
    /// the number of segments that are charged for the leases, in units of [`LEASE_CHARGE`]. The
    /// highest bit is [`RETIRED`].
    pub(crate) fn leases(&self) -> &'r AtomicU64 {
        self.region.word(self.at + 56)
    }

    /// Returns the queue, lifetime class and size class of the segment's items. In a write buffer,
    /// the lifetime class is the number of the buffer's bucket.
    pub(crate) fn kind(&self) -> Kind {
        kind_of(self.half(9).load(Ordering::Relaxed))
    }

    /// Returns whether the segment's items have this queue and lifetime class. Ignores the size
    /// class.
    #[inline]
    pub(crate) fn is_for(&self, kind: Kind) -> bool {
        let others = self.half(9).load(Ordering::Relaxed) ^ word_of(kind);
        others & !(0xff << SIZE_SHIFT) == 0
    }

    /// Returns the word with the number of a [`SegmentState`].
    fn state_word(&self) -> &'r AtomicU32 {
        self.half(10)
    }

    /// Changes the state. [`SegmentState::predecessors`] lists the valid transitions.
    pub(crate) fn set_state(&self, state: SegmentState) {
        strict_assert!(
            state.predecessors().iter().any(|before| self.is(*before)),
            "{state:?} after state {}",
            self.state_word().load(Ordering::Relaxed)
        );
        self.state_word().store(state as u32, Ordering::Release);
    }

    /// Returns the state, or `None` if the stored number is not a state.
    pub(crate) fn state(&self) -> Option<SegmentState> {
        use SegmentState::{
            Buckets, Chain, Free, Fresh, Ghosts, Open, Pages, ReadBuffers, Retired, Sealed, Tags,
            Taken, WriteBuffer,
        };
        let states = [
            Fresh,
            Free,
            Taken,
            Open,
            Sealed,
            Retired,
            Chain,
            Buckets,
            Ghosts,
            WriteBuffer,
            Pages,
            ReadBuffers,
            Tags,
        ];
        states.get(self.state_word().load(Ordering::Acquire) as usize).copied()
    }

    /// Sets the state after a restart, without a check of the transition.
    pub(crate) fn restore_state(&self, state: SegmentState) {
        self.state_word().store(state as u32, Ordering::Release);
    }

    /// Sets the total length of the dead items in bytes after a restart, and allows dead records to
    /// be taken.
    pub(crate) fn restore_dead(&self, dead: u32) {
        self.dead_word().store(dead.into(), Ordering::Release);
    }

    pub(crate) fn is(&self, state: SegmentState) -> bool {
        self.state_word().load(Ordering::Acquire) == state as u32
    }

    /// Returns whether readers may find items in the segment.
    pub(crate) fn holds_items(&self) -> bool {
        use SegmentState::{Open, ReadBuffers, Retired, Sealed, WriteBuffer};
        [Open, Sealed, Retired, WriteBuffer, ReadBuffers].into_iter().any(|state| self.is(state))
    }

    /// Returns the number of this segment's part in its growing array.
    pub(crate) fn part(&self) -> &'r AtomicU32 {
        self.half(11)
    }

    /// Returns the second at which maintenance next searches the segment for expired items.
    pub(crate) fn next_crawl(&self) -> &'r AtomicU32 {
        self.half(12)
    }

    /// Returns the word that decides whether maintenance has to search the segment for items whose
    /// tags were dropped: [`NO_TAGS`], [`UNSEARCHED`], or the number of dropped tags at the last
    /// search (see [`drops_word`]).
    fn tags_searched(&self) -> &'r AtomicU32 {
        self.half(8)
    }

    /// Records that an item of the segment has tags.
    pub(crate) fn note_tags(&self) {
        if self.tags_searched().load(Ordering::Relaxed) != UNSEARCHED {
            self.tags_searched().store(UNSEARCHED, Ordering::Relaxed);
        }
    }

    /// Makes another search of the segment necessary, because the search that
    /// [`Entry::begin_tag_search`] recorded was abandoned.
    pub(crate) fn redo_tag_search(&self) {
        if self.tags_searched().load(Ordering::Relaxed) != NO_TAGS {
            self.note_tags();
        }
    }

    /// Returns whether items of the segment may have tags that were dropped since its last search.
    pub(crate) fn may_have_dropped_tags(&self, drops: u64) -> bool {
        let searched = self.tags_searched().load(Ordering::Relaxed);
        searched != NO_TAGS && drops > 0 && searched != drops_word(drops)
    }

    /// Records the start of a search, after `drops` tags were dropped.
    pub(crate) fn begin_tag_search(&self, drops: u64) {
        if self.tags_searched().load(Ordering::Relaxed) != NO_TAGS {
            self.tags_searched().store(drops_word(drops), Ordering::Relaxed);
        }
    }

    /// Returns the total length in bytes of the segment's items that were hit since they were
    /// written to it.
    #[inline]
    pub(crate) fn first_hits(&self) -> &'r AtomicU32 {
        self.region.half(self.first_hits)
    }

    /// Resets the entry of a segment when the segment is opened.
    pub(crate) fn open(&self, kind: Kind, sequence: Sequence, now: Seconds) {
        self.reset(kind, sequence, now);
        self.set_state(SegmentState::Open);
    }

    /// Resets the entry of a segment that will hold items for flash. Dead records in it are never
    /// overwritten.
    pub(crate) fn open_write_buffer(&self, kind: Kind, sequence: Sequence, now: Seconds) {
        self.reset(kind, sequence, now);
        self.close();
        self.set_state(SegmentState::WriteBuffer);
    }

    /// Resets the entry of a read-buffer segment. Its sequence is above every flush floor, because
    /// the page of an item, and not the buffer, decides whether the item is flushed.
    pub(crate) fn open_for_buffers(&self, kind: Kind, now: Seconds) {
        self.reset(kind, OWNED - 1, now);
        self.close();
        self.set_state(SegmentState::ReadBuffers);
    }

    /// Restarts the time base of a read-buffer segment. All buffers in the segment are free.
    pub(crate) fn begin_buffers(&self, now: Seconds) {
        self.half(2).store(now.0, Ordering::Relaxed);
    }

    fn reset(&self, kind: Kind, sequence: Sequence, now: Seconds) {
        self.half(2).store(now.0.saturating_sub(1), Ordering::Relaxed);
        for (word, value) in [
            (self.written(), 0),
            (self.first_expiry(), u32::MAX),
            (self.last_expiry(), 0),
            (self.next(), 0),
            (self.half(9), word_of(kind)),
            (self.next_crawl(), 0),
            (self.tags_searched(), NO_TAGS),
            (self.first_hits(), 0),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        self.dead_word().store(0, Ordering::Relaxed);
        self.leases().store(0, Ordering::Relaxed);
        self.sequence().store(sequence, Ordering::Release);
    }

    /// Lowers the first expiry or raises the last expiry if an item's expiry is outside their
    /// range.
    pub(crate) fn note_expiry(&self, at: Expiry) {
        let at = at.second().map_or(u32::MAX, |at| at.0);
        self.last_expiry().fetch_max(at, Ordering::Relaxed);
        if self.first_expiry().fetch_min(at, Ordering::Relaxed) > at {
            // The item expires before all others, so maintenance has to search the segment by then.
            self.next_crawl().fetch_min(at, Ordering::Relaxed);
        }
    }
}

/// The value of [`Entry::tags_searched`] if no item of the segment has tags.
const NO_TAGS: u32 = 0;
/// The value of [`Entry::tags_searched`] if items with tags were added since the last search, or if
/// the segment was not searched yet.
const UNSEARCHED: u32 = 1;

/// Returns the stored form of a dropped-tag count. It repeats after two billion drops.
fn drops_word(drops: u64) -> u32 {
    2 + (drops & 0x7fff_ffff) as u32
}

/// The bit offset of the size class in a stored kind.
const SIZE_SHIFT: u32 = 8;

/// Returns the stored form of a kind, from the lowest byte on: lifetime class, size class and
/// queue.
fn word_of(kind: Kind) -> u32 {
    u32::from_le_bytes([kind.lifetime, kind.size.index(), kind.queue as u8, 0])
}

fn kind_of(word: u32) -> Kind {
    let [lifetime, size, queue, _] = word.to_le_bytes();
    let queue = if queue == Queue::Small as u8 { Queue::Small } else { Queue::Main };
    Kind { queue, lifetime, size: SizeClass::from_index(size) }
}

/// A bit of [`Entry::owner_word`] that marks an owner in the other bits. No sequence has this bit.
const OWNED: u64 = 1 << 63;
/// A bit of [`Entry::dead_word`]: no more dead records may be taken.
const CLOSED: u64 = 1 << 31;
/// The amount that each taken dead record adds to [`Entry::dead_word`].
const TAKEN_ONE: u64 = 1 << 32;

fn dead_bytes(word: u64) -> u32 {
    (word & (CLOSED - 1)) as u32
}

/// A bit of [`Entry::leases`]: no index word refers to the memory any more, and the last lease
/// frees it.
pub(crate) const RETIRED: u64 = 1 << 63;
/// The amount that each charged segment adds to [`Entry::leases`].
pub(crate) const LEASE_CHARGE: u64 = 1 << 32;

/// The region with its layout, and the directories of the growing arrays.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) region: Region,
    pub(crate) layout: Layout,
    bucket_segments: Directory,
    ghost_segments: Directory,
    page_segments: Directory,
    tag_segments: Directory,
}

/// The offsets of a growing array's parts. Each part is a segment.
#[derive(Debug)]
struct Directory {
    /// The offset of each part; 0 for a part that does not exist.
    starts: Box<[AtomicUsize]>,
    /// log2 of the number of elements in a part.
    shift: u32,
    /// The bits of an index that select the element within a part.
    mask: usize,
    /// log2 of an element's length in bytes.
    len_shift: u32,
    /// The state of the array's segments.
    state: SegmentState,
}

impl Directory {
    /// Returns a directory for elements of `len` bytes, a power of two.
    fn new(layout: &Layout, len: usize, state: SegmentState) -> Self {
        let starts = (0..layout.segments).map(|_| AtomicUsize::new(0)).collect();
        let elements = layout.segment_len / len;
        Self { starts, shift: elements.ilog2(), mask: elements - 1, len_shift: len.ilog2(), state }
    }

    #[inline]
    fn offset_of(&self, index: usize) -> usize {
        let start = self.starts[index >> self.shift].load(Ordering::Relaxed);
        start + ((index & self.mask) << self.len_shift)
    }

    fn starts_part(&self, index: usize) -> bool {
        index & self.mask == 0
    }

    /// Returns the number of parts that `len` elements need.
    fn parts(&self, len: usize) -> usize {
        len.div_ceil(self.mask + 1)
    }

    /// Returns whether all parts that `len` elements need exist.
    fn has_parts(&self, len: usize) -> bool {
        let parts = self.starts.get(..self.parts(len));
        parts.is_some_and(|parts| parts.iter().all(|at| at.load(Ordering::Relaxed) != 0))
    }
}

impl Table {
    pub(crate) fn new(region: Region, layout: Layout) -> Self {
        let bucket_segments = Directory::new(&layout, BUCKET_LEN, SegmentState::Buckets);
        let ghost_segments = Directory::new(&layout, GHOSTS_LEN, SegmentState::Ghosts);
        let page_segments = Directory::new(&layout, PAGE_ENTRY_LEN, SegmentState::Pages);
        let tag_segments = Directory::new(&layout, TAG_BUCKET_LEN, SegmentState::Tags);
        Self { region, layout, bucket_segments, ghost_segments, page_segments, tag_segments }
    }

    /// Returns the number of segments that a table of `pages` flash pages needs.
    pub(crate) fn segments_for_pages(&self, pages: usize) -> usize {
        self.page_segments.parts(pages)
    }

    /// Returns the number of pages that fit into this many segments.
    pub(crate) fn pages_within(&self, segments: usize) -> usize {
        segments * (self.page_segments.mask + 1)
    }

    /// Adds a segment to the table of pages. The new entries are zeroes.
    pub(crate) fn extend_pages(&self, part: usize, segment: u32) {
        self.add_part(&self.page_segments, part, segment);
    }

    /// Adds a segment to the tag table. The new words are zeroes.
    pub(crate) fn extend_tags(&self, part: usize, segment: u32) {
        self.add_part(&self.tag_segments, part, segment);
    }

    /// Returns a bucket of the tag table.
    #[inline]
    pub(crate) fn tag_bucket(&self, bucket: usize) -> &[AtomicU64; BUCKET_SLOTS] {
        self.region.bucket(self.tag_segments.offset_of(bucket))
    }

    /// Adds a segment to a growing array. Zeroes it if it was used before.
    fn add_part(&self, directory: &Directory, part: usize, segment: u32) {
        let entry = self.entry(segment);
        if !entry.is(SegmentState::Fresh) {
            self.clear(segment);
        }
        entry.part().store(
            u32::try_from(part)
                .expect("parts are fewer than segments, which are counted in 32 bits"),
            Ordering::Relaxed,
        );
        entry.set_state(directory.state);
        directory.starts[part].store(self.layout.start(segment), Ordering::Release);
    }

    /// Returns the offset of a page's table entry.
    #[inline]
    pub(crate) fn page_entry(&self, page: usize) -> usize {
        self.page_segments.offset_of(page)
    }

    #[inline]
    pub(crate) fn entry(&self, segment: u32) -> Entry<'_> {
        let (at, first_hits) = (self.layout.entry(segment), self.layout.first_hits(segment));
        Entry { region: &self.region, at, first_hits }
    }

    /// Returns the total length, in bytes, of the dead items in all segments.
    pub(crate) fn dead_bytes(&self) -> u64 {
        let segments = u32::try_from(self.layout.segments).unwrap_or(u32::MAX);
        let entries = (0..segments).map(|segment| self.entry(segment));
        entries.filter(Entry::holds_items).map(|entry| u64::from(entry.dead())).sum()
    }

    /// Sets the owner of the chain that starts at `first`. Does nothing if `first` is `None`. The
    /// caller calls this function before it stores the record's index word.
    #[inline]
    pub(crate) fn set_chain_owner(&self, first: Option<u32>, record: usize) {
        if let Some(first) = first {
            self.entry(first).set_owner(record);
        }
    }

    /// Allocates the file space of a segment, unless the segment was used before. Does nothing if
    /// the region is not in a file, or on systems other than Linux.
    ///
    /// # Errors
    /// The region is in a file, and its file system is full.
    pub(crate) fn commit(&self, segment: u32) -> io::Result<()> {
        if !self.region.is_file() || !self.entry(segment).is(SegmentState::Fresh) {
            return Ok(());
        }
        self.region.commit(self.layout.start(segment), self.layout.segment_len)
    }

    /// Allocates file space for the bookkeeping of the first `segments` segments. Does nothing if
    /// the region is not in a file.
    ///
    /// # Errors
    /// The same as for [`Table::commit`].
    pub(crate) fn commit_bookkeeping(&self, segments: usize) -> io::Result<()> {
        let mut ranges = self.layout.bookkeeping(segments).into_iter();
        ranges.try_for_each(|range| self.region.commit(range.start, range.len()))
    }

    #[inline]
    pub(crate) fn header_page(&self) -> &HeaderPage {
        self.region.header_page()
    }

    /// Returns the number of segments that the index needs for `bucket` and its ghosts before
    /// `bucket` can be used.
    pub(crate) fn wants(&self, bucket: usize) -> usize {
        usize::from(self.bucket_segments.starts_part(bucket))
            + usize::from(self.ghost_segments.starts_part(bucket))
    }

    /// Adds the segments that [`Table::wants`] counted for `bucket`.
    pub(crate) fn extend(&self, bucket: usize, mut segments: impl Iterator<Item = u32>) {
        for directory in [&self.bucket_segments, &self.ghost_segments] {
            if directory.starts_part(bucket) {
                let segment = segments
                    .next()
                    .expect("the caller passes as many segments as `wants` returned");
                self.add_part(directory, bucket >> directory.shift, segment);
            }
        }
    }

    /// Adds a segment in `state` to its growing array (buckets, pages, tags or ghosts) after a
    /// restart. The segment's entry contains the number of the part. Returns false if an array of
    /// `buckets` elements does not need the part, or if another segment is already that part.
    pub(crate) fn restore_part(&self, segment: u32, state: SegmentState, buckets: usize) -> bool {
        let directory = match state {
            SegmentState::Buckets => &self.bucket_segments,
            SegmentState::Pages => &self.page_segments,
            SegmentState::Tags => &self.tag_segments,
            _ => &self.ghost_segments,
        };
        let part = self.entry(segment).part().load(Ordering::Relaxed) as usize;
        let is_needed = part < directory.parts(buckets);
        let start = directory.starts.get(part).filter(|_| is_needed);
        start.is_some_and(|start| {
            let is_new = start.load(Ordering::Relaxed) == 0;
            start.store(self.layout.start(segment), Ordering::Release);
            is_new
        })
    }

    /// Returns whether all parts that `buckets` buckets need exist.
    pub(crate) fn has_parts(&self, buckets: usize) -> bool {
        self.bucket_segments.has_parts(buckets) && self.ghost_segments.has_parts(buckets)
    }

    /// Returns whether all parts of the table of pages exist.
    pub(crate) fn has_page_parts(&self, pages: usize) -> bool {
        self.page_segments.has_parts(pages)
    }

    /// Returns whether all parts of the tag table exist.
    pub(crate) fn has_tag_parts(&self, buckets: usize) -> bool {
        self.tag_segments.has_parts(buckets)
    }

    /// Empties a bucket and its ghosts. Does nothing for the first bucket of a part, because a new
    /// part contains only zeroes.
    pub(crate) fn clear_bucket(&self, bucket: usize) {
        if self.wants(bucket) == 0 {
            self.bucket(bucket).iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.ghosts(bucket).into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    fn clear(&self, segment: u32) {
        let start = self.layout.start(segment);
        let offsets = (start..start + self.layout.segment_len).step_by(8);
        offsets.for_each(|at| self.region.word(at).store(0, Ordering::Relaxed));
    }

    #[inline]
    pub(crate) fn bucket_offset(&self, bucket: usize) -> usize {
        self.bucket_segments.offset_of(bucket)
    }

    /// Returns a bucket's two ghost words.
    pub(crate) fn ghosts(&self, bucket: usize) -> [&AtomicU64; 2] {
        let at = self.ghost_segments.offset_of(bucket);
        [self.region.word(at), self.region.word(at + 8)]
    }
}

impl Buckets for Table {
    #[inline]
    fn bucket(&self, index: usize) -> &[AtomicU64; BUCKET_SLOTS] {
        self.region.bucket(self.bucket_offset(index))
    }

    #[inline]
    fn len(&self) -> &AtomicU64 {
        &self.header_page().shared.index_len
    }

    #[inline]
    fn stripe(&self, stripe: usize) -> &AtomicU32 {
        self.region.half(self.layout.stripe(stripe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_back_from_its_word() {
        for queue in Queue::ALL {
            let kind = Kind { queue, lifetime: 7, size: SizeClass::from_index(12) };
            assert_eq!(kind_of(word_of(kind)), kind);
            let other_size = Kind { size: SizeClass::from_index(11), ..kind };
            assert_eq!((word_of(kind) ^ word_of(other_size)) & !(0xff << SIZE_SHIFT), 0);
        }
    }
}
