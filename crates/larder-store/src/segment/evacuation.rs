//! A segment that is being emptied; see `evacuate`.

use super::record::OwnedSegment;
use crate::eviction::Queue;

/// A segment that is being emptied.
#[derive(Debug)]
pub(super) struct Evacuation {
    pub(super) segment: OwnedSegment,
    /// The next item's offset in the region.
    pub(super) at: usize,
    /// Its key's hash, once its bucket is on its way.
    pub(super) hash: Option<u64>,
    pub(super) end: usize,
    pub(super) reason: Reason,
    /// Records that each write empties on its way.
    pub(super) rate: usize,
    /// Items that were dropped for room.
    pub(super) evicted: u64,
}

/// Why a segment is emptied: what becomes of the live items in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Much of it is dead: all that is live moves on.
    Clean,
    /// It is its turn: the policy says what moves on, the rest is dropped.
    Evict(Queue),
}
