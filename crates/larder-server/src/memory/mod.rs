//! What a memory limit is made of.

pub mod flash;
pub mod memory_file;
pub mod slab_classes;

use larder_store::LimitRefused;
use std::ops::RangeInclusive;

const MIB: usize = 1 << 20;

/// The parts of a limit, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The limit as it was set, which does not contain the first 16 MiB of connections.
    pub limit: usize,
    /// For items, their index and bookkeeping.
    pub items: usize,
    /// For connections together: 16 MiB, and a 64th of what exceeds a GiB, taken from the items'.
    pub connections: usize,
}

impl Memory {
    /// The parts of `-m` or `cache_memlimit`.
    #[must_use]
    pub fn new(mib: usize) -> Self {
        let limit = mib.saturating_mul(MIB);
        let share = limit.saturating_sub(1024 * MIB) / 64;
        Self { limit, items: limit - share, connections: 16 * MIB + share }
    }

    /// The most that the limit may be raised to while the server runs, for items, in bytes: the memory
    /// of the machine, but no more than 64 times the first limit, because the bookkeeping is allocated
    /// at the start.
    #[must_use]
    pub fn items_max(mib: usize, machine: Option<usize>) -> usize {
        let machine_mib = machine.unwrap_or(0) / MIB;
        Self::new(machine_mib.clamp(mib, mib.saturating_mul(64))).items
    }

    /// Limits in MiB that would not be refused.
    #[must_use]
    pub fn range(refused: LimitRefused) -> RangeInclusive<usize> {
        let (mut min, mut max) = (refused.min.div_ceil(MIB), refused.max / MIB);
        // The connections' share is subtracted from a limit, so the limit has to be a little higher.
        while Self::new(min).items < refused.min {
            min += 1;
        }
        while Self::new(max + 1).items <= refused.max {
            max += 1;
        }
        min..=max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_and_sixteen_mib() {
        for mib in [3, 64, 1024, 4096, 65_536] {
            let Memory { limit, items, connections } = Memory::new(mib);
            assert_eq!((limit, items + connections), (mib * MIB, limit + 16 * MIB));
        }
    }

    #[test]
    fn a_range_ends_where_limits_are_refused() {
        for (min, max) in [(8, 64), (500, 5000), (3000, 70_000)] {
            let refused = LimitRefused { min: Memory::new(min).items, max: Memory::new(max).items };
            assert_eq!(Memory::range(refused), min..=max);
        }
    }

    #[test]
    fn a_limit_may_grow_to_what_the_machine_has() {
        assert_eq!(Memory::items_max(64, Some(512 * MIB)), 512 * MIB);
        assert_eq!(Memory::items_max(64, None), 64 * MIB);
        assert_eq!(Memory::items_max(8, Some(4096 * MIB)), 512 * MIB);
    }
}
