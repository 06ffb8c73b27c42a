//! The segment table: what is known of each segment, one line of words in the region each; and the
//! growing table of buckets and ghosts, which live in segments of their own.
//!
//! ```text
//!            open()            seal()            retire()          epoch passes
//!   Free ───────────▶ Open ───────────▶ Sealed ───────────▶ Retired ───────────▶ Free
//!    │                                                                            ▲
//!    ├──▶ Chain (a large value's) ── retire() ─────────────▶ Retired ─────────────┤
//!    └──▶ Index, Ghosts (for good)
//! ```
//! A segment that is being drained stays Sealed, but is out of the queues: it belongs to the handle
//! that drains it.

use super::alloc::Kind;
use super::index::{BUCKET_SLOTS, Buckets};
use super::layout::{BUCKET_LEN, GHOSTS_LEN, Layout};
use super::raw::Region;
use super::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::{Expiry, Seconds};
use std::sync::Arc;

/// A segment's words.
#[derive(Clone, Copy)]
pub(super) struct Entry<'r> {
    region: &'r Region,
    at: usize,
}

/// The order in which segments were opened; a flush makes every lower one void.
pub(super) type Sequence = u32;

impl<'r> Entry<'r> {
    fn half(&self, i: usize) -> &'r AtomicU32 {
        self.region.half(self.at + 4 * i)
    }

    /// When it was opened, in order. 0 for one that holds no items.
    pub(super) fn sequence(&self) -> &'r AtomicU32 {
        self.half(0)
    }

    /// One second before it was opened: what expiry and access codes count from.
    #[inline]
    pub(super) fn base(&self) -> Seconds {
        Seconds(self.half(1).load(Ordering::Relaxed))
    }

    /// Bytes of items in it, once sealed.
    pub(super) fn written(&self) -> &'r AtomicU32 {
        self.half(2)
    }

    /// Bytes of items in it that nothing refers to any more.
    pub(super) fn dead(&self) -> &'r AtomicU32 {
        self.half(3)
    }

    /// No item in it ends before this; `u32::MAX` if none ends.
    pub(super) fn first_expiry(&self) -> &'r AtomicU32 {
        self.half(4)
    }

    /// Every item in it has ended by then; `u32::MAX` if some never end.
    pub(super) fn last_expiry(&self) -> &'r AtomicU32 {
        self.half(5)
    }

    /// The next segment of a chain, plus one; 0 ends it.
    pub(super) fn next(&self) -> &'r AtomicU32 {
        self.half(6)
    }

    /// Readers that hold a chain which starts here, and [`RETIRED`].
    pub(super) fn leases(&self) -> &'r AtomicU32 {
        self.half(7)
    }

    /// Which queue and lifetime class it belongs to.
    pub(super) fn kind(&self) -> Kind {
        Kind::from_word(self.half(8).load(Ordering::Relaxed))
    }

    /// 1 from when it is sealed until it is retired.
    pub(super) fn sealed(&self) -> &'r AtomicU32 {
        self.half(9)
    }

    /// Makes it ready for items.
    pub(super) fn open(&self, kind: Kind, sequence: Sequence, now: Seconds) {
        self.half(1).store(now.0.saturating_sub(1), Ordering::Relaxed);
        self.written().store(0, Ordering::Relaxed);
        self.dead().store(0, Ordering::Relaxed);
        self.first_expiry().store(u32::MAX, Ordering::Relaxed);
        self.last_expiry().store(0, Ordering::Relaxed);
        self.half(8).store(kind.to_word(), Ordering::Relaxed);
        self.sequence().store(sequence, Ordering::Release);
    }

    /// Widens the span of expiries.
    pub(super) fn note_expiry(&self, at: Expiry) {
        let at = match at {
            Expiry::Never => u32::MAX,
            Expiry::At(at) => at.0,
        };
        self.last_expiry().fetch_max(at, Ordering::Relaxed);
        self.first_expiry().fetch_min(at, Ordering::Relaxed);
    }
}

/// Bit of [`Entry::leases`]: the chain belongs to no item any more; the last lease frees it.
pub(super) const RETIRED: u32 = 1 << 31;

/// Buckets and ghosts, in segments that the index has taken.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) region: Arc<Region>,
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
}

impl Directory {
    /// For elements of `len` bytes; everything is a power of two.
    fn new(layout: &Layout, len: usize) -> Self {
        let starts = (0..layout.segments).map(|_| AtomicUsize::new(0)).collect();
        let elements = layout.segment_len / len;
        Self { starts, shift: elements.ilog2(), mask: elements - 1, len_shift: len.ilog2() }
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
    pub(super) fn new(region: Arc<Region>, layout: Layout) -> Self {
        let bucket_segments = Directory::new(&layout, BUCKET_LEN);
        let ghost_segments = Directory::new(&layout, GHOSTS_LEN);
        Self { region, layout, bucket_segments, ghost_segments }
    }

    pub(super) fn entry(&self, segment: u32) -> Entry<'_> {
        Entry { region: &self.region, at: self.layout.entry(segment) }
    }

    /// How many more segments are wanted before `bucket` can be used: its own, its ghosts'.
    pub(super) fn wants(&self, bucket: usize) -> usize {
        usize::from(self.bucket_segments.starts_part(bucket))
            + usize::from(self.ghost_segments.starts_part(bucket))
    }

    /// Gives the segments that [`Table::wants`] said to `bucket`. They are zeroed.
    pub(super) fn extend(&self, bucket: usize, mut segments: impl Iterator<Item = u32>) {
        for directory in [&self.bucket_segments, &self.ghost_segments] {
            if directory.starts_part(bucket) {
                let segment = segments.next().expect("as many as wanted");
                self.clear(segment);
                let start = self.layout.start(segment);
                directory.starts[bucket >> directory.shift].store(start, Ordering::Release);
            }
        }
    }

    fn clear(&self, segment: u32) {
        let start = self.layout.start(segment);
        let places = (start..start + self.layout.segment_len).step_by(8);
        let words = places.map(|at| self.region.word(at));
        // What was never in use is zero, and reading it takes no memory: written, all its pages would
        // have to be found at once, which takes milliseconds.
        let used = words.filter(|word| word.load(Ordering::Relaxed) != 0);
        used.for_each(|word| word.store(0, Ordering::Relaxed));
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
}
