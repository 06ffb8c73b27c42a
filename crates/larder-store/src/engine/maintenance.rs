//! Maintenance, and the totals of a cache.

use super::{Attributes, Gauges, Seconds};

/// An item evicted from memory, as passed to an [`EvictionObserver`].
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'e> {
    /// The key of the item.
    pub key: &'e [u8],
    /// Client flags, expiry and marks.
    pub attributes: Attributes,
    /// Whether the item was read: see [`super::Item::fetched`].
    pub fetched: bool,
    /// The time at which the item was last read or stored: see [`super::Item::accessed`].
    pub accessed: Seconds,
    /// The length of the value in bytes.
    pub value_len: usize,
    /// The time of the eviction.
    pub now: Seconds,
    /// The bucket of the item's page (see [`crate::FlashPage::bucket`]) if the item was written to
    /// flash, where lookups still find it. `None` if the item was removed.
    pub flash_bucket: Option<u8>,
}

/// A function that the engine calls for each item that it evicts from memory, including items that
/// it writes to flash. The engine calls it under locks, so it must be fast and must not use a
/// cache.
pub type EvictionObserver = Box<dyn Fn(&Eviction<'_>) + Send + Sync>;

/// The error for a memory limit that the engine can't use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRefused {
    /// The lowest limit that would be accepted now, in bytes.
    pub min: usize,
    /// The highest limit that would be accepted now, in bytes.
    pub max: usize,
}

/// Maintenance that a worker does between batches, and the totals of the cache.
pub trait Maintenance {
    /// Does a short step of maintenance at the time `now`: applies a delayed flush that is due,
    /// removes expired items, and frees memory above a lowered limit, if the engine can. Returns
    /// true if there is more to do now.
    fn maintain(&mut self, now: Seconds) -> bool;

    /// Does a short step of the maintenance that an operator cannot disable: applies a delayed
    /// flush that is due, returns memory above a lowered limit to the system, removes flushed
    /// items, and writes idle items to flash, if the engine can. Returns true if there is more to
    /// do now.
    fn shrink(&mut self, _now: Seconds) -> bool {
        false
    }

    /// Makes the next [`Maintenance::maintain`] start a search for expired items, even if none is
    /// due.
    fn crawl_soon(&mut self) {}

    /// Returns the cache's totals. Every handle returns the same totals.
    fn gauges(&self) -> Gauges;

    /// Zeroes the counters for `stats reset`, but not the number and the bytes of the items.
    fn reset_counters(&self);
}
