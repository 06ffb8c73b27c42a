//! Open segments, to which handles append items, and the lifetime classes of items.

use super::table::Sequence;
use crate::eviction::{Kind, Queue, open_budget};
use crate::{Expiry, Seconds};

/// A segment to which one handle appends.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) segment: u32,
    pub(crate) kind: Kind,
    pub(crate) sequence: Sequence,
    pub(crate) base: Seconds,
    /// The offset of the next item in the region.
    pub(crate) at: usize,
    pub(crate) end: usize,
    /// The last expiry that the handle wrote to the segment's table entry. `None` before the first
    /// such write, and after a search of the segment started. The handle does not write the same
    /// expiry twice in succession, because other threads write to that cache line whenever an item
    /// of the segment dies.
    pub(crate) noted: Option<Expiry>,
    /// The total number of segments in the chains that belong to this segment's items.
    pub(crate) chained: usize,
    pub(crate) items: u32,
}

impl Open {
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.at + len <= self.end
    }
}

/// If at least one in this many segments is open, a write takes over an idle open segment of
/// another handle instead of opening a new segment, if there is such a segment. While handles
/// alternate (see `write::room`), the write waits for such a segment.
pub(crate) const OPEN_SHARE_MAX: usize = 3;

/// The maximum number of lifetime classes. The simulator (`simulate/s3fifo.rs` of
/// `larder-capacity`) has copies of this constant and [`lifetime_class`].
const LIFETIMES_MAX: usize = 8;

/// Returns the number of lifetime classes. The number is low if handles may have only few segments
/// open.
pub(crate) fn lifetime_count(segments: usize, threads: usize) -> u32 {
    let each = open_budget(segments, threads) / Queue::ALL.len();
    u32::try_from(each.clamp(1, LIFETIMES_MAX)).expect("LIFETIMES_MAX fits 32 bits")
}

/// Returns the lifetime class of an item. Items of one class share segments if enough segments may
/// be open, so that the items of a segment expire at about the same time. Items of class 0 never
/// expire, unless there is only one class. The other classes are spaced logarithmically up to about
/// 50 days.
pub(crate) fn lifetime_class(expiry: Expiry, now: Seconds, classes: u32) -> u8 {
    const SPAN_BITS: u32 = 22;
    let mortal = classes - 1;
    let class = match expiry.left(now) {
        None => 0,
        Some(_) if mortal == 0 => 0,
        Some(left) => 1 + ((left | 1).ilog2() * mortal / SPAN_BITS).min(mortal - 1),
    };
    u8::try_from(class).expect("at most 8 classes")
}
