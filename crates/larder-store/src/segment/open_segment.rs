//! A segment that is open for appending, and how many of them there may be.

use super::table::Sequence;
use crate::eviction::{Kind, Queue, open_budget};
use crate::{Expiry, Seconds};

/// A segment that one handle appends to.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) segment: u32,
    pub(super) kind: Kind,
    pub(super) sequence: Sequence,
    pub(super) base: Seconds,
    /// The next item's offset in the region.
    pub(super) at: usize,
    pub(super) end: usize,
    /// The last expiry that was noted in its entry. Other threads write there whenever an item of it
    /// dies, so it is left alone where it says what it should already.
    pub(super) noted: Option<Expiry>,
    /// Segments in the chains of its items.
    pub(super) chained: usize,
    pub(super) items: u32,
}

impl Open {
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.at + len <= self.end
    }
}

/// The most segments that are open before a write takes one that another handle leaves, and waits
/// for it where handles take turns (see `room`): one in this many.
pub(super) const OPEN_SHARE_MAX: usize = 3;

/// Lifetime classes at most.
const LIFETIMES_MAX: usize = 8;

/// How many lifetime classes there are: few where few segments may be open.
pub(super) fn lifetime_count(segments: usize, threads: usize) -> u32 {
    let each = open_budget(segments, threads) / Queue::ALL.len();
    u32::try_from(each.clamp(1, LIFETIMES_MAX)).expect("at most 8")
}

/// The lifetime class: items that end at about the same time share segments, so that these end
/// whole. Class 0 never ends; the others are log-spaced up to about 50 days.
pub(super) fn lifetime_class(expiry: Expiry, now: Seconds, classes: u32) -> u8 {
    const SPAN_BITS: u32 = 22;
    let mortal = classes - 1;
    let class = match expiry.left(now) {
        None => 0,
        Some(_) if mortal == 0 => 0,
        Some(left) => 1 + ((left | 1).ilog2() * mortal / SPAN_BITS).min(mortal - 1),
    };
    u8::try_from(class).expect("at most 8 classes")
}
