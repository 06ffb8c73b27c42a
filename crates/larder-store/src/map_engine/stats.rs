//! Counters of the size classes, under locks that all handles share. These locks are fast enough,
//! because the engines of this module exist for comparison.

use super::Record;
use crate::engine::RemovalReason;
use crate::{ClassGauges, Gauges, Seconds};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The counters of a cache.
#[derive(Debug)]
pub(crate) struct MapStats {
    stored: AtomicU64,
    classes: Box<[Mutex<ClassGauges>]>,
}

impl MapStats {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            stored: AtomicU64::new(0),
            classes: (0..classes).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn store(&self) {
        self.stored.fetch_add(1, Relaxed);
    }

    pub(super) fn add_item(&self, class: usize, footprint: usize) {
        self.change(class, |class| {
            class.items += 1;
            class.bytes += footprint as u64;
        });
    }

    pub(super) fn remove_item(&self, class: usize, footprint: usize) {
        self.change(class, |class| {
            class.items -= 1;
            class.bytes -= footprint as u64;
        });
    }

    pub(super) fn reclaim(
        &self,
        class: usize,
        reason: RemovalReason,
        fetched: bool,
        crawled: bool,
    ) {
        self.change(class, |class| {
            class.reclaimed += 1;
            class.reclaimed_flushed += u64::from(reason == RemovalReason::Flushed);
            class.expired_unfetched += u64::from(!fetched);
            class.crawler_reclaimed += u64::from(crawled);
        });
    }

    pub(super) fn evict(&self, class: usize, record: &Record, now: Seconds) {
        self.change(class, |class| {
            class.evicted += 1;
            class.evicted_nonzero += u64::from(record.attributes.expiry != crate::Expiry::Never);
            class.evicted_unfetched += u64::from(!record.fetched());
            class.evicted_active += u64::from(record.fetched());
            class.evicted_time = now.0.saturating_sub(record.accessed().0).into();
        });
    }

    pub(super) fn refuse(&self, class: usize) {
        self.change(class, |class| class.out_of_memory += 1);
    }

    fn change(&self, class: usize, change: impl FnOnce(&mut ClassGauges)) {
        if let Some(class) = self.classes.get(class) {
            change(&mut lock(class));
        }
    }

    /// Zeroes all counters except the number and the bytes of the items in the map.
    pub(crate) fn reset(&self) {
        self.stored.store(0, Relaxed);
        for class in &self.classes {
            let mut class = lock(class);
            let ClassGauges { items, bytes, .. } = *class;
            *class = ClassGauges { items, bytes, ..ClassGauges::default() };
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        let classes: Vec<ClassGauges> = self.classes.iter().map(|class| *lock(class)).collect();
        Gauges {
            items: classes.iter().map(|class| class.items).sum(),
            bytes: classes.iter().map(|class| class.bytes).sum(),
            items_total: self.stored.load(Relaxed),
            evictions: classes.iter().map(|class| class.evicted).sum(),
            classes,
            ..Gauges::default()
        }
    }
}

fn lock(class: &Mutex<ClassGauges>) -> MutexGuard<'_, ClassGauges> {
    // Counters are valid even after a panic.
    class.lock().unwrap_or_else(PoisonError::into_inner)
}
