//! A segment that is being emptied; see `evacuate`.

use super::record::OwnedSegment;
use crate::eviction::Queue;

/// A segment that is being emptied.
#[derive(Debug)]
pub(super) struct Evacuation {
    pub(super) segment: OwnedSegment,
    /// The offset of the next record in the region.
    pub(super) at: usize,
    /// The hash of the next record's key, if its buckets were prefetched.
    pub(super) hash: Option<u64>,
    pub(super) end: usize,
    pub(super) reason: Reason,
    /// The number of records that each write evacuates.
    pub(super) rate: usize,
    /// Items that were evicted.
    pub(super) evicted: u64,
    /// Items that have left for flash.
    pub(super) left: usize,
}

/// Why a segment is emptied, which says what happens to its live items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Much of it is dead: all live items are moved.
    Clean,
    /// It is the next victim of the policy, which says which items are moved; the others are evicted.
    Evict(Queue),
    /// It is so many seconds old: items that were idle for as long leave for flash, the others are moved.
    Age(u32),
}
