//! What one handle has added and removed. One writer each; sums over all handles are the cache's
//! totals. Differences are kept wrapping: one handle may remove what another added.

use crate::{ClassGauges, Gauges};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! class_tally {
    ($($field:ident)*) => {
        /// One size class.
        #[derive(Debug, Default)]
        struct ClassTally { $($field: Count,)* }

        impl ClassTally {
            fn add_to(&self, sum: &mut ClassGauges) {
                $(sum.$field = sum.$field.wrapping_add(self.$field.get());)*
            }
        }
    };
}

class_tally! {
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
pub(super) struct Tally {
    stored: Count,
    classes: Box<[ClassTally]>,
}

/// What an eviction knows of its item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evicted {
    pub(super) fetched: bool,
    pub(super) mortal: bool,
    pub(super) idle_secs: u32,
}

impl Tally {
    pub(super) fn new(classes: usize) -> Self {
        Self {
            stored: Count::default(),
            classes: (0..classes).map(|_| ClassTally::default()).collect(),
        }
    }

    pub(super) fn store(&self) {
        self.stored.add(1);
    }

    #[inline]
    pub(super) fn add_item(&self, class: usize, bytes: usize) {
        let tally = &self.classes[class];
        tally.items.add(1);
        tally.bytes.add(bytes as u64);
    }

    #[inline]
    pub(super) fn remove_item(&self, class: usize, bytes: usize) {
        let tally = &self.classes[class];
        tally.items.add(1_u64.wrapping_neg());
        tally.bytes.add((bytes as u64).wrapping_neg());
    }

    pub(super) fn evict(&self, class: usize, item: Evicted) {
        let tally = &self.classes[class];
        tally.evicted.add(1);
        tally.evicted_nonzero.add(item.mortal.into());
        tally.evicted_unfetched.add((!item.fetched).into());
        tally.evicted_active.add(item.fetched.into());
        tally.evicted_time.set(item.idle_secs.into());
    }

    /// An expired or flushed item gave its place up; `crawled` if nobody had asked for it.
    pub(super) fn reclaim(&self, class: usize, fetched: bool, crawled: bool) {
        let tally = &self.classes[class];
        tally.reclaimed.add(1);
        tally.expired_unfetched.add((!fetched).into());
        tally.crawler_reclaimed.add(crawled.into());
    }

    pub(super) fn refuse(&self, class: usize) {
        self.classes[class].out_of_memory.add(1);
    }

    /// Zeroes all but the live items.
    pub(super) fn reset(&self) {
        self.stored.set(0);
        for class in &self.classes {
            let ClassTally {
                items: _, bytes: _, evicted, evicted_nonzero, evicted_unfetched, ..
            } = class;
            let ClassTally { evicted_active, evicted_time, expired_unfetched, reclaimed, .. } =
                class;
            let ClassTally { crawler_reclaimed, out_of_memory, .. } = class;
            [evicted, evicted_nonzero, evicted_unfetched, evicted_active, evicted_time]
                .into_iter()
                .chain([expired_unfetched, reclaimed, crawler_reclaimed, out_of_memory])
                .for_each(|count| count.set(0));
        }
    }

    /// Adds this handle's counts to the totals.
    pub(super) fn add_to(&self, gauges: &mut Gauges) {
        gauges.items_total = gauges.items_total.wrapping_add(self.stored.get());
        let sums = gauges.classes.iter_mut();
        sums.zip(&self.classes).for_each(|(sum, class)| class.add_to(sum));
    }
}
