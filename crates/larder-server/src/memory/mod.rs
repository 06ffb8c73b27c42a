//! Divides the memory limit, and manages the cache's files.

pub mod flash;
pub mod memory_file;
pub mod slab_classes;
pub(crate) mod storage_watch;

use larder_store::LimitRefused;
use std::ops::RangeInclusive;

const MIB: usize = 1 << 20;

/// The memory limit and its parts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The configured limit. It excludes the first 16 MiB of connection memory.
    pub limit: usize,
    /// Memory for items, their index and bookkeeping.
    pub items: usize,
    /// Memory for all connections: 16 MiB, plus 1/64 of the part of the limit above 1 GiB. `items`
    /// excludes this 1/64.
    pub connections: usize,
}

impl Memory {
    /// Divides a limit in MiB, from `-m` or `cache_memlimit`.
    #[must_use]
    pub fn new(mib: usize) -> Self {
        let limit = mib.saturating_mul(MIB);
        let share = limit.saturating_sub(1024 * MIB) / 64;
        Self { limit, items: limit - share, connections: 16 * MIB + share }
    }

    /// Returns the maximum of [`Self::items`] in bytes to which `cache_memlimit` can raise the
    /// limit while the server runs. `mib` is the initial limit, and `machine` is the memory of the
    /// machine in bytes. The maximum is the value of `items` for a limit of `machine`, but at least
    /// the value for `mib`, and at most the value for 64 times `mib`. The upper bound exists
    /// because the engine allocates the bookkeeping for the maximum at the start.
    #[must_use]
    pub fn items_max(mib: usize, machine: Option<usize>) -> usize {
        let machine_mib = machine.unwrap_or(0) / MIB;
        Self::new(machine_mib.clamp(mib, mib.saturating_mul(64))).items
    }

    /// Returns the memory limits, in MiB, that the engine would accept after it has refused a
    /// memory size for items. With each of these limits, [`Self::items`] is in the range of
    /// `refused`.
    #[must_use]
    pub fn range(refused: LimitRefused) -> RangeInclusive<usize> {
        let (mut min, mut max) = (refused.min.div_ceil(MIB), refused.max / MIB);
        // Search for the exact limit. It is a little higher than the memory for items, because the
        // limit includes a share for connections.
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
    fn the_parts_sum_to_the_limit_and_sixteen_mib() {
        for mib in [3, 64, 1024, 4096, 65_536] {
            let Memory { limit, items, connections } = Memory::new(mib);
            assert_eq!((limit, items + connections), (mib * MIB, limit + 16 * MIB));
        }
    }

    #[test]
    fn a_range_contains_exactly_the_accepted_limits() {
        for (min, max) in [(8, 64), (500, 5000), (3000, 70_000)] {
            let refused = LimitRefused { min: Memory::new(min).items, max: Memory::new(max).items };
            assert_eq!(Memory::range(refused), min..=max);
        }
    }

    #[test]
    fn the_limit_can_grow_to_the_memory_of_the_machine() {
        assert_eq!(Memory::items_max(64, Some(512 * MIB)), 512 * MIB);
        assert_eq!(Memory::items_max(64, None), 64 * MIB);
        assert_eq!(Memory::items_max(8, Some(4096 * MIB)), 512 * MIB);
    }
}
