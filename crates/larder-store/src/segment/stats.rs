//! What one handle has added and removed. One writer each; sums over all handles are the cache's
//! totals. Differences are kept wrapping: one handle may remove what another added.

use crate::{ClassGauges, Gauges};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! class_stats {
    ($($field:ident)*) => {
        /// One size class.
        #[derive(Debug, Default)]
        struct ClassStats { $($field: Count,)* }

        impl ClassStats {
            fn add_to(&self, sum: &mut ClassGauges) {
                $(sum.$field = sum.$field.wrapping_add(self.$field.get());)*
            }

            fn absorb(&self, other: &Self) {
                $(self.$field.add(other.$field.get());)*
            }
        }
    };
}

class_stats! {
    items bytes evicted evicted_nonzero evicted_unfetched evicted_active evicted_time
    expired_unfetched reclaimed crawler_reclaimed out_of_memory
}

/// A number with one writer.
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

/// One handle's counts. Aligned so that two handles' never share a line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct HandleStats {
    stored: Count,
    classes: Box<[ClassStats]>,
}

/// What an eviction knows of its item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evicted {
    pub(super) fetched: bool,
    pub(super) mortal: bool,
    pub(super) idle_secs: u32,
}

impl HandleStats {
    pub(super) fn new(classes: usize) -> Self {
        Self {
            stored: Count::default(),
            classes: (0..classes).map(|_| ClassStats::default()).collect(),
        }
    }

    pub(super) fn store(&self) {
        self.stored.add(1);
    }

    #[inline]
    pub(super) fn add_item(&self, class: usize, bytes: usize) {
        let class = &self.classes[class];
        class.items.add(1);
        class.bytes.add(bytes as u64);
    }

    #[inline]
    pub(super) fn remove_item(&self, class: usize, bytes: usize) {
        let class = &self.classes[class];
        class.items.add(1_u64.wrapping_neg());
        class.bytes.add((bytes as u64).wrapping_neg());
    }

    pub(super) fn evict(&self, class: usize, item: Evicted) {
        let class = &self.classes[class];
        class.evicted.add(1);
        class.evicted_nonzero.add(item.mortal.into());
        class.evicted_unfetched.add((!item.fetched).into());
        class.evicted_active.add(item.fetched.into());
        class.evicted_time.set(item.idle_secs.into());
    }

    /// An expired or flushed item gave its place up; `crawled` if nobody had asked for it.
    pub(super) fn reclaim(&self, class: usize, fetched: bool, crawled: bool) {
        let class = &self.classes[class];
        class.reclaimed.add(1);
        class.expired_unfetched.add((!fetched).into());
        class.crawler_reclaimed.add(crawled.into());
    }

    pub(super) fn refuse(&self, class: usize) {
        self.classes[class].out_of_memory.add(1);
    }

    /// Zeroes all but the live items.
    pub(super) fn reset(&self) {
        self.stored.set(0);
        for class in &self.classes {
            let ClassStats {
                items: _, bytes: _, evicted, evicted_nonzero, evicted_unfetched, ..
            } = class;
            let ClassStats { evicted_active, evicted_time, expired_unfetched, reclaimed, .. } =
                class;
            let ClassStats { crawler_reclaimed, out_of_memory, .. } = class;
            [evicted, evicted_nonzero, evicted_unfetched, evicted_active, evicted_time]
                .into_iter()
                .chain([expired_unfetched, reclaimed, crawler_reclaimed, out_of_memory])
                .for_each(|count| count.set(0));
        }
    }

    /// Takes over the counts of a handle that is gone.
    pub(super) fn absorb(&self, other: &Self) {
        self.stored.add(other.stored.get());
        self.classes.iter().zip(&other.classes).for_each(|(own, other)| own.absorb(other));
    }

    /// Adds this handle's counts to the totals.
    pub(super) fn add_to(&self, gauges: &mut Gauges) {
        gauges.items_total = gauges.items_total.wrapping_add(self.stored.get());
        let sums = gauges.classes.iter_mut();
        sums.zip(&self.classes).for_each(|(sum, class)| class.add_to(sum));
    }
}
