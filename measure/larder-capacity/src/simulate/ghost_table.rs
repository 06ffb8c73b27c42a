//! The ghosts (hashes of evicted keys) of a simulated cache, in buckets like those of the engine's
//! index.

use larder_store::eviction::{GhostClock, Ghosts};

/// Number of live items per bucket above which the table grows: 85 % of eight. The engine's
/// constant for the 85 % is `INDEX_LOAD` (`segment/write/index_growth.rs` of `larder-store`).
const ITEMS_PER_BUCKET: f64 = 6.8;

/// A table of ghosts that grows by splitting one bucket at a time. After a split, both buckets
/// contain all ghosts of the original bucket.
#[derive(Debug)]
pub(super) struct GhostTable {
    buckets: Vec<Ghosts>,
    clock: GhostClock,
}

impl GhostTable {
    pub(super) fn new(buckets: usize) -> Self {
        Self { buckets: vec![Ghosts::default(); buckets.max(1)], clock: GhostClock::default() }
    }

    pub(super) fn remember(&mut self, key: u32) {
        let (hash, epoch) = (hash(key), self.clock.epoch());
        let bucket = self.bucket_of(hash);
        self.buckets[bucket] = self.buckets[bucket].remember(hash, epoch);
    }

    /// Removes the ghost of a key. Returns whether the key had a ghost.
    pub(super) fn take(&mut self, key: u32) -> bool {
        let (hash, epoch) = (hash(key), self.clock.epoch());
        let bucket = self.bucket_of(hash);
        let ghosts = &mut self.buckets[bucket];
        let held = ghosts.holds(hash, epoch);
        *ghosts = ghosts.forget(hash);
        held
    }

    pub(super) fn count_evictions(&mut self, evictions: u64, live: u64) {
        let sweep = self.clock.count_evictions(evictions, live, self.buckets.len());
        let epoch = self.clock.epoch();
        for bucket in sweep {
            self.buckets[bucket] = self.buckets[bucket].sweep(epoch);
        }
    }

    pub(super) fn grow_for(&mut self, live: u64) {
        while live as f64 > self.buckets.len() as f64 * ITEMS_PER_BUCKET {
            let split = self.buckets.len() - (self.buckets.len() + 1).next_power_of_two() / 2;
            self.buckets.push(self.buckets[split]);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    fn bucket_of(&self, hash: u64) -> usize {
        let mask = self.buckets.len().next_power_of_two() - 1;
        let bucket = hash as usize & mask;
        if bucket < self.buckets.len() { bucket } else { bucket & mask >> 1 }
    }
}

/// Hashes a key with `SplitMix64`.
fn hash(key: u32) -> u64 {
    let mut hash = (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ghosts_stay_where_they_are_found_while_the_table_grows() {
        let mut table = GhostTable::new(64);
        (0..100).for_each(|key| table.remember(key));
        for live in 0..2000 {
            table.grow_for(live);
        }
        assert_eq!(table.buckets.len(), 294);
        let found = (0..100).filter(|key| table.take(*key)).count();
        assert!(found >= 99, "{found}");
        assert!((0..100).all(|key| !table.take(key)), "a ghost is returned only once");
    }

    #[test]
    fn ghosts_end_after_as_many_evictions_as_items_are_live() {
        let mut table = GhostTable::new(64);
        table.remember(7);
        (0..70).for_each(|_| table.count_evictions(1, 80));
        assert!(table.take(7));
        table.remember(7);
        (0..90).for_each(|_| table.count_evictions(1, 80));
        assert!(!table.take(7));
    }
}
