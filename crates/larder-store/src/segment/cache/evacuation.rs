//! A segment that is being emptied; see `reclaim::evacuation`.

use crate::eviction::Queue;
use crate::segment::item::record::OwnedSegment;

/// A segment that is being emptied.
#[derive(Debug)]
pub(crate) struct Evacuation {
    pub(crate) segment: OwnedSegment,
    /// The offset of the next record in the region.
    pub(crate) at: usize,
    /// The hash of the next record's key, if its buckets were prefetched.
    pub(crate) hash: Option<u64>,
    pub(crate) end: usize,
    pub(crate) reason: Reason,
    /// The number of records that each write evacuates.
    pub(crate) rate: usize,
    /// Items that were evicted.
    pub(crate) evicted: u64,
    /// Items that have left for flash.
    pub(crate) left: usize,
}

/// Why a segment is emptied, which says what happens to its live items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Much of it is dead: all live items are moved.
    Clean,
    /// It is the next victim of the policy, which says which items are moved; the others are evicted.
    Evict(Queue),
    /// It is so many seconds old: items that were idle for as long leave for flash, the others are moved.
    Age(u32),
}
