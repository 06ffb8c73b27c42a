//! Maintenance, and the totals of a cache.

use super::{Attributes, Gauges, Seconds};

/// An evicted item, as an [`EvictionObserver`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'e> {
    /// The key of the item.
    pub key: &'e [u8],
    /// Client flags, expiry and marks.
    pub attributes: Attributes,
    /// Whether the item was read since it was stored.
    pub fetched: bool,
    /// When the item was last read, or stored if it was never read.
    pub accessed: Seconds,
    /// The length of the value in bytes.
    pub value_len: usize,
    /// When the item is evicted.
    pub now: Seconds,
}

/// A function that is called for every eviction. It is called under locks, so it must be quick and
/// must not use a cache.
pub type EvictionObserver = Box<dyn Fn(&Eviction<'_>) + Send + Sync>;

/// An engine can't work under a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRefused {
    /// The lowest limit that would be accepted now, in bytes.
    pub min: usize,
    /// The highest limit that would be accepted, in bytes.
    pub max: usize,
}

/// Maintenance, which a worker does between batches, and the totals of the cache.
pub trait Maintenance {
    /// Does a short step of maintenance (removing expired items, [`Maintenance::shrink`]); true if there is
    /// more to do now.
    fn maintain(&mut self, now: Seconds) -> bool;

    /// Returns some of the memory above a lowered limit to the system; true if there is more to
    /// return.
    fn shrink(&mut self) -> bool {
        false
    }

    /// Makes the next [`Maintenance::maintain`] begin a search for expired items, whether one is due or not.
    fn crawl_soon(&mut self) {}

    /// The cache's totals, the same from each handle.
    fn gauges(&self) -> Gauges;

    /// Zeroes what `stats reset` zeroes.
    fn reset_counters(&self);
}
