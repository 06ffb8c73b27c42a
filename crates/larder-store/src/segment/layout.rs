//! Where everything is in the region, worked out once from the memory limit.
//!
//! ```text
//! ┌────────────────────────┬───────────┬───────────┬─────────┬─────┐
//! │ segment table          │ segment 0 │ segment 1 │ …       │     │
//! │ 64 bytes a segment     │ segment_len bytes each              │
//! └────────────────────────┴───────────┴───────────┴─────────┴─────┘
//! ```
//! The index and its ghosts live in segments too, taken as they grow, so that they count against
//! the limit and small caches pay little for them.
#![expect(clippy::cast_possible_truncation, reason = "segments are counted in 32 bits")]

use super::slot::REGION_MAX;

/// The table's bytes for each segment: one line.
pub(super) const ENTRY_LEN: usize = 64;
/// Bytes of an index bucket.
pub(super) const BUCKET_LEN: usize = 64;
/// Bytes of ghosts that go with a bucket.
pub(super) const GHOSTS_LEN: usize = 16;

/// The longest page that a system may have. Segments begin and end at pages, so that their memory
/// can be given back without that of others.
const PAGE_LEN_MAX: usize =
    if cfg!(any(target_arch = "x86", target_arch = "x86_64")) { 4 << 10 } else { 64 << 10 };
/// Shorter ones would be no longer than the items that have to fit in. Model checks have to go
/// through a good many, and give none back.
const SEGMENT_LEN_MIN: usize = if cfg!(shuttle) {
    2 << 10
} else if PAGE_LEN_MAX > 16 << 10 {
    PAGE_LEN_MAX
} else {
    16 << 10
};
const _: () = assert!(cfg!(shuttle) || SEGMENT_LEN_MIN.is_multiple_of(PAGE_LEN_MAX));
/// Larger ones gain nothing that could be measured, and chains and uploads come in whole segments.
const SEGMENT_LEN_MAX: usize = 1 << 20;
/// Fewer, and one open segment a queue and thread is too large a share.
const SEGMENTS_AIM: usize = 1024;
/// Fewer will do where segments would be shorter than this: an item that does not fit behind the
/// others in its segment costs more then than open segments do.
const SEGMENT_LEN_SHORT: usize = 64 << 10;
const SEGMENTS_AIM_SHORT: usize = 256;
/// Fewer cannot work: index, ghosts, open segments, reserve.
pub(super) const SEGMENTS_MIN: usize = 32;

/// The smallest region that works, in bytes.
pub(super) const REGION_MIN: usize = SEGMENTS_MIN * (SEGMENT_LEN_MIN + ENTRY_LEN);

/// Sizes and offsets, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) segment_len: usize,
    /// log2 of it.
    segment_shift: u32,
    /// Segments that there may ever be.
    pub(super) segments: usize,
    /// Segments that there are at first.
    pub(super) segments_first: usize,
    first_segment: usize,
}

impl Layout {
    /// The layout for a limit that may grow to `limit_max`; `None` if it is below [`REGION_MIN`] or
    /// above what locations reach.
    pub(super) fn new(limit: usize, limit_max: usize) -> Option<Self> {
        let limit_max = limit_max.max(limit);
        if limit < REGION_MIN || limit_max as u64 > REGION_MAX {
            return None;
        }
        let short = (limit / SEGMENTS_AIM_SHORT).clamp(SEGMENT_LEN_MIN, SEGMENT_LEN_SHORT);
        let ideal = (limit / SEGMENTS_AIM).clamp(short, SEGMENT_LEN_MAX);
        let segment_len = 1 << ideal.ilog2();
        let segments = limit_max / (segment_len + ENTRY_LEN);
        let first_segment = (segments * ENTRY_LEN).next_multiple_of(PAGE_LEN_MAX);
        let mut layout = Self {
            segment_len,
            segment_shift: segment_len.ilog2(),
            segments,
            segments_first: 0,
            first_segment,
        };
        layout.segments_first = layout.segments_within(limit);
        Some(layout)
    }

    /// How many segments a limit has room for, with their lines of the table.
    pub(super) fn segments_within(&self, limit: usize) -> usize {
        (limit / (self.segment_len + ENTRY_LEN)).min(self.segments)
    }

    pub(super) fn region_len(&self) -> usize {
        self.first_segment + self.segments * self.segment_len
    }

    /// The table line of a segment.
    #[inline]
    pub(super) fn entry(&self, segment: u32) -> usize {
        segment as usize * ENTRY_LEN
    }

    /// The first byte of a segment.
    #[inline]
    pub(super) fn start(&self, segment: u32) -> usize {
        self.first_segment + segment as usize * self.segment_len
    }

    /// The segment that a location is in. Segment lengths are powers of two.
    #[inline]
    pub(super) fn segment_of(&self, offset: usize) -> u32 {
        ((offset - self.first_segment) >> self.segment_shift) as u32
    }

    /// The largest value that is kept whole in one place. Larger ones have a chain of segments for
    /// their front. A value of L bytes in a segment of S wastes S - L in a chain; among others, where
    /// it does not fit any more, about L² / 2S: the same at 0.73 S.
    pub(super) fn inline_max(&self) -> usize {
        self.segment_len / 4 * 3 - ITEM_HEAD_MAX
    }

    /// Segments that the index begins with: a power of two, under 1 % of all but in small regions.
    pub(super) fn index_segments_first(&self) -> usize {
        1 << (self.segments_first / 128).clamp(1, 8).ilog2()
    }

    pub(super) fn buckets_per_segment(&self) -> usize {
        self.segment_len / BUCKET_LEN
    }
}

/// The most that an item takes beside its value: header, CAS, flags, expiry, chain, key, padding.
pub(super) const ITEM_HEAD_MAX: usize = 8 + 8 + 4 + 4 + 8 + 255 + 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_never_exceeds_its_limit() {
        for mib in [3, 8, 64, 100, 256, 1000, 1024, 16_384, 1 << 20] {
            let layout = Layout::new(mib << 20, mib << 22).unwrap();
            let used = layout.segments_first * (layout.segment_len + ENTRY_LEN);
            assert!(used <= mib << 20 && used > (mib << 20) - 2 * layout.segment_len);
            assert!(layout.region_len() <= (mib << 22) + PAGE_LEN_MAX);
            assert!(layout.start(0).is_multiple_of(PAGE_LEN_MAX));
            assert!(layout.segment_len.is_multiple_of(PAGE_LEN_MAX));
            assert!(layout.segments_first >= SEGMENTS_MIN);
            let last = layout.segments as u32 - 1;
            assert_eq!(layout.segment_of(layout.start(last)), last);
            assert_eq!(layout.segment_of(layout.start(last) + layout.segment_len - 1), last);
        }
    }

    #[test]
    fn too_small_and_too_large_limits_are_refused() {
        assert_eq!(Layout::new(REGION_MIN - 1, 0), None);
        assert_eq!(Layout::new(usize::MAX, 0), None);
    }
}
