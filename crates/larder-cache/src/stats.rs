//! Statistics of a cache.

use crate::core::Core;
use larder_store::segment::MissRatioCurve;

/// The counts since the creation of the cache, and its current size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Lookups that found a value. Excludes lookups by [`crate::Cache::contains`] and
    /// [`crate::Cache::ttl`], and by counters, updates and iterators.
    pub hits: u64,
    /// Lookups that found no value or an expired value, with the same exclusions as [`Self::hits`].
    pub misses: u64,
    /// Values that were stored, except by counters.
    pub insertions: u64,
    /// Values that the cache refused because they are too large or because the cache could not
    /// allocate memory for them. Refusals because of an invalid key or tag, or a lack of memory for
    /// tags, do not count.
    pub refusals: u64,
    /// Items that the cache evicted to make room.
    pub evictions: u64,
    /// Items, including expired and cleared items that maintenance has not removed yet.
    pub items: u64,
    /// Used memory in bytes: items, index and bookkeeping.
    pub memory_used: u64,
    /// The upper limit of `memory_used`, in bytes.
    pub memory_limit: u64,
}

impl Stats {
    /// Returns the share of lookups that found a value, 0 to 1, or `None` before the first lookup.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let lookups = self.hits + self.misses;
        (lookups > 0).then(|| self.hits as f64 / lookups as f64)
    }

    pub(crate) fn of(core: &Core) -> Self {
        let (counters, gauges) = (core.workers.counters(), core.store.gauges());
        let of_classes = |count: fn(&larder_operations::ClassCounters) -> u64| -> u64 {
            counters.classes.iter().map(count).sum()
        };
        let of_thread = &counters.thread;
        // Like memcached, `cmd_set` counts refused swaps, although they store nothing.
        let refused_swaps = of_classes(|class| class.cas_badval.get()) + of_thread.cas_misses.get();
        Self {
            hits: of_classes(|class| class.get_hits.get()),
            misses: of_thread.get_misses.get(),
            insertions: of_classes(|class| class.cmd_set.get()).saturating_sub(refused_swaps),
            refusals: of_thread.store_too_large.get() + of_thread.store_no_memory.get(),
            evictions: gauges.evictions,
            items: gauges.items,
            memory_used: gauges.used_bytes,
            memory_limit: gauges.limit_bytes,
        }
    }
}

/// Returns the hit ratio at `factor` times the memory. Between two points of the curve,
/// interpolates linearly over the logarithm of the memory, because the curve is nearly a straight
/// line on this scale. Returns `None` if `factor` is outside of the curve.
pub(crate) fn hit_ratio_at(curve: &MissRatioCurve, factor: f64) -> Option<f64> {
    let mut points = curve.hit_ratios.windows(2).filter_map(|pair| {
        let &[(low, at_low), (high, at_high)] = pair else { return None };
        let share = (factor / low).log2() / (high / low).log2();
        (low..=high).contains(&factor).then_some(at_low + (at_high - at_low) * share)
    });
    points.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_interpolated_within_the_curve_and_unknown_outside() {
        let hit_ratios = vec![(0.5, 0.2), (1.0, 0.4), (2.0, 0.8)];
        let curve = MissRatioCurve { hit_ratios, ..MissRatioCurve::default() };
        assert_eq!(hit_ratio_at(&curve, 0.5), Some(0.2));
        assert_eq!(hit_ratio_at(&curve, 1.0), Some(0.4));
        assert_eq!(hit_ratio_at(&curve, 2.0), Some(0.8));
        let between = hit_ratio_at(&curve, 2.0_f64.sqrt()).unwrap();
        assert!((between - 0.6).abs() < 1e-9, "{between}");
        assert_eq!(hit_ratio_at(&curve, 0.4), None);
        assert_eq!(hit_ratio_at(&curve, 2.1), None);
        assert_eq!(hit_ratio_at(&MissRatioCurve::default(), 1.0), None);
    }
}
