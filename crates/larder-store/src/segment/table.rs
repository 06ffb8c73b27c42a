//! The segment table: what is known of each segment, one line of words in the region each; and the
//! growing table of buckets and ghosts, which live in segments of their own.
//!
//! ```text
//!   Fresh ──▶ Taken                                     never used before
//!
//!          take()           open()           seal()            retire()          epoch passes
//!   Free ─────────▶ Taken ─────────▶ Open ─────────▶ Sealed ─────────────▶ Retired ─────────▶ Free
//!                     │                                                       ▲
//!                     ├──▶ Chain (of a large value) ───────── retire() ───────┘
//!                     └──▶ Buckets, Ghosts (for good)
//! ```
//! A segment that is being cleaned or evicted stays Sealed, but is out of the queues: it belongs to
//! the handle that empties it. An upload's segments are Taken until their value is stored.

use super::header_page::HeaderPage;
use super::index::{BUCKET_SLOTS, Buckets};
use super::layout::{BUCKET_LEN, GHOSTS_LEN, Layout};
use super::raw::Region;
use super::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::eviction::{Kind, Queue, SizeClass};
use crate::{Expiry, Seconds};

/// What a segment is used for; see the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum SegmentState {
    /// Never used: its memory reads as zeroes and takes none from the system.
    Fresh = 0,
    Free,
    Taken,
    Open,
    Sealed,
    Retired,
    Chain,
    Buckets,
    Ghosts,
}

impl SegmentState {
    /// The states that this one may come after.
    fn predecessors(self) -> &'static [Self] {
        match self {
            Self::Fresh => &[],
            // Who takes a segment to use it at once does not say that it is taken.
            Self::Taken => &[Self::Fresh, Self::Free],
            Self::Open | Self::Buckets | Self::Ghosts => &[Self::Fresh, Self::Free, Self::Taken],
            Self::Sealed => &[Self::Open],
            Self::Retired => &[Self::Sealed],
            // A chain that could not be published is linked up again.
            Self::Chain => &[Self::Taken, Self::Chain],
            Self::Free => &[Self::Retired, Self::Chain, Self::Taken, Self::Free, Self::Fresh],
        }
    }
}

/// A segment's words.
#[derive(Clone, Copy)]
pub(super) struct Entry<'r> {
    region: &'r Region,
    at: usize,
    first_hits: usize,
}

/// The order in which segments were opened; a flush makes every lower one void.
pub(super) type Sequence = u64;

impl<'r> Entry<'r> {
    fn half(&self, i: usize) -> &'r AtomicU32 {
        self.region.half(self.at + 4 * i)
    }

    /// When it was opened, in order. 0 for one that holds no items.
    #[inline]
    pub(super) fn sequence(&self) -> &'r AtomicU64 {
        self.region.word(self.at)
    }

    /// One second before it was opened: what expiry and access codes count from.
    #[inline]
    pub(super) fn base(&self) -> Seconds {
        Seconds(self.half(2).load(Ordering::Relaxed))
    }

    /// Bytes of items in it, once sealed.
    pub(super) fn written(&self) -> &'r AtomicU32 {
        self.half(3)
    }

    /// Bytes of items in it that nothing refers to any more.
    pub(super) fn dead(&self) -> &'r AtomicU32 {
        self.half(4)
    }

    /// No item in it ends before this; `u32::MAX` if none ends.
    pub(super) fn first_expiry(&self) -> &'r AtomicU32 {
        self.half(5)
    }

    /// Every item in it has ended by then; `u32::MAX` if some never end.
    pub(super) fn last_expiry(&self) -> &'r AtomicU32 {
        self.half(6)
    }

    /// The next segment of a chain, plus one; 0 ends it, and a segment without one.
    pub(super) fn next(&self) -> &'r AtomicU32 {
        self.half(7)
    }

    /// Leases on a chain that starts here, or on values that end here: their number in the low 32
    /// bits, what is charged for them together in steps of [`LEASE_CHARGE`], and [`RETIRED`].
    pub(super) fn leases(&self) -> &'r AtomicU64 {
        self.region.word(self.at + 56)
    }

    /// Which queue and classes it belongs to.
    pub(super) fn kind(&self) -> Kind {
        kind_of(self.half(9).load(Ordering::Relaxed))
    }

    /// A [`SegmentState`].
    fn state_word(&self) -> &'r AtomicU32 {
        self.half(10)
    }

    /// Follows one of the arrows in the drawing.
    pub(super) fn set_state(&self, state: SegmentState) {
        strict_assert!(
            state.predecessors().iter().any(|before| self.is(*before)),
            "{state:?} after state {}",
            self.state_word().load(Ordering::Relaxed)
        );
        self.state_word().store(state as u32, Ordering::Release);
    }

    pub(super) fn is(&self, state: SegmentState) -> bool {
        self.state_word().load(Ordering::Acquire) == state as u32
    }

    /// Whether a reader may find items in it.
    pub(super) fn holds_items(&self) -> bool {
        [SegmentState::Open, SegmentState::Sealed, SegmentState::Retired]
            .into_iter()
            .any(|state| self.is(state))
    }

    /// Which part of the buckets or ghosts it is.
    fn part(&self) -> &'r AtomicU32 {
        self.half(11)
    }

    /// When maintenance looks for expired items in it next, in seconds.
    pub(super) fn next_crawl(&self) -> &'r AtomicU32 {
        self.half(12)
    }

    /// Bytes of its items that were hit for the first time since they were written here.
    #[inline]
    pub(super) fn first_hits(&self) -> &'r AtomicU32 {
        self.region.half(self.first_hits)
    }

    /// Makes it ready for items.
    pub(super) fn open(&self, kind: Kind, sequence: Sequence, now: Seconds) {
        self.half(2).store(now.0.saturating_sub(1), Ordering::Relaxed);
        for (word, value) in [
            (self.written(), 0),
            (self.dead(), 0),
            (self.first_expiry(), u32::MAX),
            (self.last_expiry(), 0),
            (self.next(), 0),
            (self.half(9), word_of(kind)),
            (self.next_crawl(), 0),
            (self.first_hits(), 0),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        self.leases().store(0, Ordering::Relaxed);
        self.sequence().store(sequence, Ordering::Release);
        self.set_state(SegmentState::Open);
    }

    /// Widens the span of expiries.
    pub(super) fn note_expiry(&self, at: Expiry) {
        let at = match at {
            Expiry::Never => u32::MAX,
            Expiry::At(at) => at.0,
        };
        self.last_expiry().fetch_max(at, Ordering::Relaxed);
        if self.first_expiry().fetch_min(at, Ordering::Relaxed) > at {
            // It ends before all others: maintenance has to come by in time.
            self.next_crawl().fetch_min(at, Ordering::Relaxed);
        }
    }
}

/// A kind as it is stored: queue, size class and lifetime class, a byte each.
fn word_of(kind: Kind) -> u32 {
    u32::from_le_bytes([kind.lifetime, kind.size.index(), kind.queue as u8, 0])
}

fn kind_of(word: u32) -> Kind {
    let [lifetime, size, queue, _] = word.to_le_bytes();
    let queue = if queue == Queue::Small as u8 { Queue::Small } else { Queue::Main };
    Kind { queue, lifetime, size: SizeClass::from_index(size) }
}

/// Bit of [`Entry::leases`]: nothing in the index refers to it any more; the last lease frees it.
pub(super) const RETIRED: u64 = 1 << 63;
/// One charged segment in [`Entry::leases`].
pub(super) const LEASE_CHARGE: u64 = 1 << 32;

/// Buckets and ghosts, in segments that the index has taken.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) region: Region,
    pub(super) layout: Layout,
    bucket_segments: Directory,
    ghost_segments: Directory,
}

/// Where the parts of a growing array are, each in a segment of its own.
#[derive(Debug)]
struct Directory {
    /// The first byte of each part, or 0.
    starts: Box<[AtomicUsize]>,
    /// log2 of the elements in a part.
    shift: u32,
    /// Which bits of a number say which element of its part.
    mask: usize,
    /// log2 of an element's length in bytes.
    len_shift: u32,
    /// What the segments of its parts are.
    state: SegmentState,
}

impl Directory {
    /// For elements of `len` bytes; everything is a power of two.
    fn new(layout: &Layout, len: usize, state: SegmentState) -> Self {
        let starts = (0..layout.segments).map(|_| AtomicUsize::new(0)).collect();
        let elements = layout.segment_len / len;
        Self { starts, shift: elements.ilog2(), mask: elements - 1, len_shift: len.ilog2(), state }
    }

    #[inline]
    fn place(&self, index: usize) -> usize {
        let start = self.starts[index >> self.shift].load(Ordering::Relaxed);
        start + ((index & self.mask) << self.len_shift)
    }

    fn starts_part(&self, index: usize) -> bool {
        index & self.mask == 0
    }
}

impl Table {
    pub(super) fn new(region: Region, layout: Layout) -> Self {
        let bucket_segments = Directory::new(&layout, BUCKET_LEN, SegmentState::Buckets);
        let ghost_segments = Directory::new(&layout, GHOSTS_LEN, SegmentState::Ghosts);
        Self { region, layout, bucket_segments, ghost_segments }
    }

    #[inline]
    pub(super) fn entry(&self, segment: u32) -> Entry<'_> {
        let (at, first_hits) = (self.layout.entry(segment), self.layout.first_hits(segment));
        Entry { region: &self.region, at, first_hits }
    }

    #[inline]
    pub(super) fn header_page(&self) -> &HeaderPage {
        self.region.header_page()
    }

    /// How many more segments are wanted before `bucket` can be used: its own, its ghosts'.
    pub(super) fn wants(&self, bucket: usize) -> usize {
        usize::from(self.bucket_segments.starts_part(bucket))
            + usize::from(self.ghost_segments.starts_part(bucket))
    }

    /// Gives the segments that [`Table::wants`] said to `bucket`. Those that were used before are
    /// zeroed.
    pub(super) fn extend(&self, bucket: usize, mut segments: impl Iterator<Item = u32>) {
        for directory in [&self.bucket_segments, &self.ghost_segments] {
            if directory.starts_part(bucket) {
                let segment = segments.next().expect("as many as wanted");
                let entry = self.entry(segment);
                if !entry.is(SegmentState::Fresh) {
                    self.clear(segment);
                }
                let part = bucket >> directory.shift;
                entry.part().store(u32::try_from(part).expect("segments"), Ordering::Relaxed);
                entry.set_state(directory.state);
                directory.starts[part].store(self.layout.start(segment), Ordering::Release);
            }
        }
    }

    fn clear(&self, segment: u32) {
        let start = self.layout.start(segment);
        let places = (start..start + self.layout.segment_len).step_by(8);
        places.for_each(|at| self.region.word(at).store(0, Ordering::Relaxed));
    }

    #[inline]
    pub(super) fn bucket_offset(&self, bucket: usize) -> usize {
        self.bucket_segments.place(bucket)
    }

    /// The two words of ghosts that go with a bucket.
    pub(super) fn ghosts(&self, bucket: usize) -> [&AtomicU64; 2] {
        let at = self.ghost_segments.place(bucket);
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
    fn a_kind_survives_the_table() {
        for queue in Queue::ALL {
            let kind = Kind { queue, lifetime: 7, size: SizeClass::from_index(12) };
            assert_eq!(kind_of(word_of(kind)), kind);
        }
    }
}
