//! The layout of the region, computed once from the memory limit.
//!
//! ```text
//! ┌─────────────┬─────────┬───────────────┬───────────────┬────────────┬───────────┬───────────┬───┐
//! │ header page │ stripes │ handle blocks │ segment table │ first hits │ segment 0 │ segment 1 │ … │
//! │ 4 KiB       │ 4 KiB   │ ≈ 1 KiB each  │ 64 B each     │ 4 B each   │ segment_len bytes each    │
//! └─────────────┴─────────┴───────────────┴───────────────┴────────────┴───────────┴───────────┴───┘
//! ```
//! The index, its ghosts and the tables of pages and tags take segments as they grow. So they count
//! against the limit, and small caches use little memory for them.
#![expect(clippy::cast_possible_truncation, reason = "segments are counted in 32 bits")]

use crate::KEY_LEN_MAX;
use crate::segment::index::word::{LOCATION_BITS, REGION_MAX};
use rapidhash::v3::RapidSecrets;
use std::ops::Range;

/// The length in bytes of the header page, independent of the system's page length.
pub(crate) const HEADER_PAGE_LEN: usize = 4096;
/// The length in bytes of a segment's table entry: one cache line.
const ENTRY_LEN: usize = 64;
/// The length in bytes of a segment's first-hit counter.
const FIRST_HITS_LEN: usize = 4;
/// The offset in bytes of the counts in a handle block.
pub(crate) const BLOCK_HEAD_LEN: usize = 64;
/// The length in bytes of the bookkeeping for each segment.
pub(crate) const PER_SEGMENT_LEN: usize = ENTRY_LEN + FIRST_HITS_LEN;
/// The length in bytes of an index bucket.
pub(crate) const BUCKET_LEN: usize = 64;
/// The length in bytes of an entry in the table of flash pages.
pub(crate) const PAGE_ENTRY_LEN: usize = 64;
/// The length in bytes of a tag table bucket.
pub(crate) const TAG_BUCKET_LEN: usize = 64;
/// The length in bytes of an index bucket's ghosts.
pub(crate) const GHOSTS_LEN: usize = 16;

/// The maximum number of stripes: enough that two writers rarely need the same stripe.
pub(crate) const STRIPES_MAX: usize = 1024;
/// The length in bytes of a stripe's word.
const STRIPE_LEN: usize = 4;
/// The length in bytes of everything before the handle blocks.
const FIXED_LEN: usize = HEADER_PAGE_LEN + STRIPES_MAX * STRIPE_LEN;

// The simulator has copies of the next five constants, of `inline_max` and of
// `index_segments_first` (`simulate/s3fifo.rs` of `larder-capacity`).

/// The length in bytes of the shortest segments. Shorter segments could not hold the longest inline
/// items. Model checks use shorter segments, because they have to fill many of them.
const SEGMENT_LEN_MIN: usize = if cfg!(any(loom, shuttle)) { 2 << 10 } else { 16 << 10 };
/// The length in bytes of the longest segments. Measurements showed no gain from longer segments,
/// and chains and uploads take whole segments.
const SEGMENT_LEN_MAX: usize = 1 << 20;
/// The desired number of segments. With fewer segments, the open segments (one for each queue and
/// thread) take too large a share.
const SEGMENTS_AIM: usize = 1024;
/// Segments below this length in bytes are short. If [`SEGMENTS_AIM`] segments would be short, the
/// region has fewer but longer segments, down to [`SEGMENTS_AIM_SHORT`]: the unused ends of short
/// segments cost more memory than open segments.
const SEGMENT_LEN_SHORT: usize = 64 << 10;
const SEGMENTS_AIM_SHORT: usize = 256;
/// The minimum number of segments, enough for index, ghosts, open segments and reserve.
pub(crate) const SEGMENTS_MIN: usize = 32;

/// The maximum total length of all handle blocks is the limit divided by `BLOCKS_SHARE`. But there
/// are at least `BLOCKS_MIN` blocks, one of which is shared.
const BLOCKS_SHARE: usize = 64;
const BLOCKS_MIN: usize = 2;
/// If [`BLOCKS_SHARE`] allows it, at least this many handles have blocks of their own, even if the
/// cache starts with fewer handles.
const BLOCKS_USUAL: usize = 16;

/// Returns the lowest possible limit, in bytes, of a cache that counts items in `classes` size
/// classes.
pub(crate) const fn limit_min(classes: usize) -> usize {
    FIXED_LEN + BLOCKS_MIN * block_len(classes) + SEGMENTS_MIN * (SEGMENT_LEN_MIN + PER_SEGMENT_LEN)
}

/// The parameters that determine a region's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) segment_len: usize,
    /// The number of segments at the maximum limit.
    pub(crate) segments: usize,
    /// The number of handle blocks (see `handle_block`).
    pub(crate) blocks: usize,
    /// The number of size classes per handle block.
    pub(crate) classes: usize,
}

impl Shape {
    /// Returns the shape for a limit that may grow to `limit_max`. The shape has blocks for
    /// `threads` handles or for [`BLOCKS_USUAL`], whichever is more. It has fewer blocks if these
    /// would exceed the share that [`BLOCKS_SHARE`] allows. Each block has counters of items for
    /// `classes` size classes. Returns `None` if the limit is too low, or higher than locations can
    /// address.
    pub(crate) fn new(
        limit: usize,
        limit_max: usize,
        threads: usize,
        classes: usize,
    ) -> Option<Self> {
        let limit_max = limit_max.max(limit);
        if limit < limit_min(classes) || limit_max as u64 > REGION_MAX {
            return None;
        }
        // The handles that have no block of their own share the last block.
        let room = (limit - limit_min(classes)) / block_len(classes) + BLOCKS_MIN;
        let blocks_max = (limit / BLOCKS_SHARE / block_len(classes)).clamp(BLOCKS_MIN, room);
        let blocks = (threads.max(BLOCKS_USUAL).saturating_add(1)).clamp(BLOCKS_MIN, blocks_max);
        let short = (limit / SEGMENTS_AIM_SHORT).clamp(SEGMENT_LEN_MIN, SEGMENT_LEN_SHORT);
        let ideal = (limit / SEGMENTS_AIM).clamp(short, SEGMENT_LEN_MAX);
        let segment_len = 1 << ideal.ilog2();
        let room = limit_max - FIXED_LEN - blocks * block_len(classes);
        Some(Self {
            segment_len,
            segments: room / (segment_len + PER_SEGMENT_LEN),
            blocks,
            classes,
        })
    }

    /// Returns whether a region can have this shape.
    pub(crate) fn is_possible(&self) -> bool {
        self.segment_len.is_power_of_two()
            && (SEGMENT_LEN_MIN..=SEGMENT_LEN_MAX).contains(&self.segment_len)
            && (1..=1 << 16).contains(&self.blocks)
            && (1..=256).contains(&self.classes)
            && self
                .segments
                .checked_mul(self.segment_len)
                .is_some_and(|len| len as u64 <= REGION_MAX)
            && self.segments >= SEGMENTS_MIN
    }
}

/// The layout of a region. Lengths and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) segment_len: usize,
    /// log2 of `segment_len`.
    pub(crate) segment_shift: u32,
    /// The number of segments at the maximum limit.
    pub(crate) segments: usize,
    /// The initial number of segments.
    pub(crate) segments_first: usize,
    /// The number of handle blocks.
    pub(crate) blocks: usize,
    /// The length of a handle block in bytes.
    block_len: usize,
    table: usize,
    first_hits: usize,
    first_segment: usize,
    /// Whether segments start and end at boundaries of system pages. If so, the memory of a single
    /// segment can be returned to the system.
    pub(crate) has_whole_pages: bool,
}

impl Layout {
    /// Returns the layout of a shape under a limit, on a system whose pages have `page_len` bytes.
    pub(crate) fn new(shape: Shape, limit: usize, page_len: usize) -> Self {
        let Shape { segment_len, segments, blocks, classes } = shape;
        let table = FIXED_LEN + blocks * block_len(classes);
        let first_hits = table + segments * ENTRY_LEN;
        let begin = first_hits + segments * FIRST_HITS_LEN;
        let mut layout = Self {
            segment_len,
            segment_shift: segment_len.ilog2(),
            segments,
            segments_first: 0,
            blocks,
            block_len: block_len(classes),
            table,
            first_hits,
            first_segment: begin.next_multiple_of(page_len.max(64)),
            has_whole_pages: segment_len >= page_len,
        };
        layout.segments_first = layout.segments_within(limit);
        layout
    }

    /// Returns the number of segments that fit into a limit if their bookkeeping counts too.
    pub(crate) fn segments_within(&self, limit: usize) -> usize {
        let room = limit.saturating_sub(self.table);
        (room / (self.segment_len + PER_SEGMENT_LEN)).min(self.segments)
    }

    /// Returns the lowest limit that allows `segments` segments.
    pub(crate) fn limit_for(&self, segments: usize) -> usize {
        self.table + segments * (self.segment_len + PER_SEGMENT_LEN)
    }

    /// Returns the two ranges of offsets before the first segment that are in use if the region has
    /// `segments` segments.
    pub(crate) fn bookkeeping(&self, segments: usize) -> [Range<usize>; 2] {
        [
            0..self.table + segments * ENTRY_LEN,
            self.first_hits..self.first_hits + segments * FIRST_HITS_LEN,
        ]
    }

    pub(crate) fn region_len(&self) -> usize {
        self.first_segment + self.segments * self.segment_len
    }

    /// Returns the offset of a stripe's word.
    #[inline]
    pub(crate) fn stripe(&self, stripe: usize) -> usize {
        HEADER_PAGE_LEN + stripe * STRIPE_LEN
    }

    /// Returns the offset of a handle block.
    pub(crate) fn block(&self, block: usize) -> usize {
        FIXED_LEN + block * self.block_len
    }

    /// Returns the offset of a segment's table entry.
    #[inline]
    pub(crate) fn entry(&self, segment: u32) -> usize {
        self.table + segment as usize * ENTRY_LEN
    }

    /// Returns the offset of the word that counts first hits on a segment's items.
    #[inline]
    pub(crate) fn first_hits(&self, segment: u32) -> usize {
        self.first_hits + segment as usize * FIRST_HITS_LEN
    }

    /// Returns the offset of a segment.
    #[inline]
    pub(crate) fn start(&self, segment: u32) -> usize {
        self.first_segment + segment as usize * self.segment_len
    }

    /// Returns the number of the segment that contains this offset. Segment lengths are powers of
    /// two.
    #[inline]
    pub(crate) fn segment_of(&self, offset: usize) -> u32 {
        ((offset - self.first_segment) >> self.segment_shift) as u32
    }

    /// Returns the maximum length in bytes of a value that is stored entirely inline. The front of
    /// a longer value is in a chain of segments. In a chain, a value of L bytes wastes S - L bytes
    /// of its segment of S bytes. Inline, the value wastes about L² / 2S bytes at the ends of
    /// segments in which it does not fit. The two amounts are equal at L = 0.73 S.
    pub(crate) fn inline_max(&self) -> usize {
        self.segment_len / 4 * 3 - ITEM_HEAD_MAX
    }

    /// Returns the initial number of segments of the index: a power of two. Without flash, it is
    /// under 1 % of all segments except in small regions. With flash, it is a 64th of all segments,
    /// rounded down to an integer and then up to a power of two. An index with items on flash can
    /// grow only 64-fold, because it cannot read their keys.
    pub(crate) fn index_segments_first(&self, has_flash: bool) -> usize {
        if has_flash {
            return (self.segments_first / 64).next_power_of_two();
        }
        1 << (self.segments_first / 128).clamp(1, 8).ilog2()
    }

    pub(crate) fn buckets_per_segment(&self) -> usize {
        self.segment_len / BUCKET_LEN
    }
}

/// Returns the length of a handle block in bytes: a line for the segments that its handle changes,
/// and two words for each class. The length is rounded up to a multiple of two cache lines, so that
/// handles do not write to each other's lines.
const fn block_len(classes: usize) -> usize {
    (BLOCK_HEAD_LEN + 16 * classes).next_multiple_of(128)
}

/// Returns a hash of the system's page length, the lengths of the main tables' entries, the byte
/// order, the key hash function and the width of locations. A region is reused only if this hash
/// and the layout version match. The version covers all other changes.
pub(crate) fn constants(page_len: usize) -> u64 {
    checksum(&[
        page_len as u64,
        ENTRY_LEN as u64,
        FIRST_HITS_LEN as u64,
        PAGE_ENTRY_LEN as u64,
        BUCKET_LEN as u64,
        GHOSTS_LEN as u64,
        (STRIPES_MAX * STRIPE_LEN) as u64,
        BLOCK_HEAD_LEN as u64,
        u64::from_ne_bytes(*b"the byte"),
        rapidhash::v3::rapidhash_v3_seeded(b"the hash function", &RapidSecrets::seed(1)),
        u64::from(LOCATION_BITS),
    ])
}

/// Returns a checksum of words.
pub(crate) fn checksum(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rapidhash::v3::rapidhash_v3(&bytes)
}

/// The maximum length in bytes of an item without its value: header, CAS, extension, flags, expiry,
/// link, tags, key and padding.
pub(crate) const ITEM_HEAD_MAX: usize = 8 + 8 + 8 + 4 + 4 + 8 + 7 * 8 + KEY_LEN_MAX + 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_never_exceeds_its_limit() {
        for page_len in [4 << 10, 16 << 10, 64 << 10] {
            for mib in [1, 2, 3, 8, 64, 100, 256, 1000, 1024, 16_384, 1 << 20] {
                let shape = Shape::new(mib << 20, mib << 22, 4, 63).unwrap();
                let layout = Layout::new(shape, mib << 20, page_len);
                assert!(shape.is_possible());
                let used = layout.limit_for(layout.segments_first);
                assert!(used <= mib << 20 && used > (mib << 20) - 2 * layout.segment_len);
                assert!(layout.region_len() <= (mib << 22) + page_len);
                assert!(layout.start(0).is_multiple_of(page_len));
                let whole = layout.segment_len.is_multiple_of(page_len);
                assert_eq!(layout.has_whole_pages, whole);
                assert!(layout.segments_first >= SEGMENTS_MIN);
                let last = layout.segments as u32 - 1;
                assert_eq!(layout.segment_of(layout.start(last)), last);
                assert_eq!(layout.segment_of(layout.start(last) + layout.segment_len - 1), last);
                assert!(layout.first_hits(last) < layout.start(0));
            }
        }
    }

    #[test]
    fn too_small_and_too_large_limits_are_refused() {
        assert_eq!(Shape::new(limit_min(63) - 1, 0, 4, 63), None);
        assert!(Shape::new(limit_min(63), 0, 4, 63).is_some());
        assert_eq!(Shape::new(usize::MAX, 0, 1, 1), None);
    }
}
