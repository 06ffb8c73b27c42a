//! The counters of a handle since its start or the last reset. Only the handle itself adds to them.
//! Their sums over all handles, including dropped handles, are the cache's totals. The counts of
//! items are in the region (`memory::handle_block`).

use crate::engine::RemovalReason;
use crate::{ClassGauges, Gauges, Seconds};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! class_stats {
    ($($field:ident)*) => {
        /// The counters of a size class.
        #[derive(Debug, Default)]
        struct ClassStats {
            last_eviction: LastEviction,
            $($field: Count,)*
        }

        impl ClassStats {
            fn add_to(&self, sum: &mut ClassGauges) {
                sum.evicted_time = sum.evicted_time.max(self.last_eviction.0.get());
                $(sum.$field = sum.$field.wrapping_add(self.$field.get());)*
            }

            fn absorb(&self, other: &Self) {
                let last = self.last_eviction.0.get().max(other.last_eviction.0.get());
                self.last_eviction.0.set(last);
                $(self.$field.add(other.$field.get());)*
            }
        }
    };
}

class_stats! {
    evicted evicted_nonzero evicted_unfetched evicted_active
    expired_unfetched reclaimed reclaimed_flushed reclaimed_untagged crawler_reclaimed
    out_of_memory
}

/// A counter to which no two threads add at the same time.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    #[inline]
    fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
}

/// The time of the last eviction, and how long its item had been idle. The high 32 bits contain the
/// second of the eviction. The low 32 bits contain the number of idle seconds. So the greatest of
/// several such values belongs to the last eviction.
#[derive(Debug, Default)]
struct LastEviction(Count);

impl LastEviction {
    fn set(&self, now: Seconds, idle_secs: u32) {
        self.0.set(u64::from(now.0) << 32 | u64::from(idle_secs));
    }

    fn idle_secs(word: u64) -> u64 {
        word & u64::from(u32::MAX)
    }
}

/// The counters of a handle. Their alignment prevents two handles from sharing a cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct HandleStats {
    stored: Count,
    classes: Box<[ClassStats]>,
}

/// The properties of an evicted item that the counters need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvictedItem {
    pub(crate) fetched: bool,
    pub(crate) mortal: bool,
    pub(crate) idle_secs: u32,
}

impl HandleStats {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            stored: Count::default(),
            classes: (0..classes).map(|_| ClassStats::default()).collect(),
        }
    }

    pub(crate) fn store(&self) {
        self.stored.add(1);
    }

    pub(crate) fn evict(&self, class: usize, item: EvictedItem, now: Seconds) {
        let class = &self.classes[class];
        class.evicted.add(1);
        class.evicted_nonzero.add(item.mortal.into());
        class.evicted_unfetched.add((!item.fetched).into());
        class.evicted_active.add(item.fetched.into());
        class.last_eviction.set(now, item.idle_secs);
    }

    /// Counts an item that was removed because it was no longer valid. `crawled` is true if
    /// maintenance found it.
    pub(crate) fn reclaim(
        &self,
        class: usize,
        reason: RemovalReason,
        fetched: bool,
        crawled: bool,
    ) {
        let class = &self.classes[class];
        class.reclaimed.add(1);
        class.reclaimed_flushed.add((reason == RemovalReason::Flushed).into());
        class.reclaimed_untagged.add((reason == RemovalReason::Untagged).into());
        class.expired_unfetched.add((!fetched).into());
        class.crawler_reclaimed.add(crawled.into());
    }

    pub(crate) fn refuse(&self, class: usize) {
        self.classes[class].out_of_memory.add(1);
    }

    /// Zeroes all counters.
    pub(crate) fn reset(&self) {
        self.stored.set(0);
        for class in &self.classes {
            let ClassStats { last_eviction, evicted, evicted_nonzero, .. } = class;
            let ClassStats { evicted_unfetched, evicted_active, expired_unfetched, .. } = class;
            let ClassStats { reclaimed, reclaimed_flushed, reclaimed_untagged, .. } = class;
            let ClassStats { crawler_reclaimed, out_of_memory, .. } = class;
            [&last_eviction.0, evicted, evicted_nonzero, evicted_unfetched, evicted_active]
                .into_iter()
                .chain([expired_unfetched, reclaimed, reclaimed_flushed, reclaimed_untagged])
                .chain([crawler_reclaimed, out_of_memory])
                .for_each(|count| count.set(0));
        }
    }

    /// Adds the counters of a dropped handle.
    pub(crate) fn absorb(&self, other: &Self) {
        self.stored.add(other.stored.get());
        self.classes.iter().zip(&other.classes).for_each(|(own, other)| own.absorb(other));
    }

    /// Returns the sums of several handles' counters.
    pub(crate) fn total<'h>(classes: usize, handles: impl IntoIterator<Item = &'h Self>) -> Gauges {
        let classes = vec![ClassGauges::default(); classes];
        let mut gauges = Gauges { classes, ..Gauges::default() };
        handles.into_iter().for_each(|handle| handle.add_to(&mut gauges));
        let last = gauges.classes.iter().map(|class| class.evicted_time).max();
        gauges.evicted_time = LastEviction::idle_secs(last.unwrap_or(0));
        for class in &mut gauges.classes {
            class.evicted_time = LastEviction::idle_secs(class.evicted_time);
        }
        gauges
    }

    /// Adds this handle's counts to the totals. The `evicted_time` of the totals has the format of
    /// [`LastEviction`] until the counts of all handles have been added.
    fn add_to(&self, gauges: &mut Gauges) {
        gauges.items_total = gauges.items_total.wrapping_add(self.stored.get());
        let sums = gauges.classes.iter_mut();
        sums.zip(&self.classes).for_each(|(sum, class)| class.add_to(sum));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_last_eviction_of_any_handle_counts() {
        let handles = [0, 1, 2].map(|_| HandleStats::new(1));
        let evict = |handle: usize, now, idle_secs| {
            let item = EvictedItem { fetched: false, mortal: false, idle_secs };
            handles[handle].evict(0, item, Seconds(now));
        };
        let age = |handles: &[HandleStats]| HandleStats::total(1, handles).classes[0].evicted_time;
        assert_eq!(age(&handles), 0);
        evict(0, 10, 7);
        evict(1, 12, 5);
        evict(2, 11, 9);
        assert_eq!((age(&handles), age(&handles[2..])), (5, 9));
        handles[2].absorb(&handles[1]);
        assert_eq!(age(&handles[2..]), 5);
        handles.iter().for_each(HandleStats::reset);
        assert_eq!(age(&handles), 0);
    }
}
