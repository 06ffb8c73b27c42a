//! A counter with one writer and any number of readers. Adding is a load and a store on a cache
//! line that no other thread writes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call this function, because the addition is not an
    /// atomic read-modify-write.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Returns the count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets the counter to zero. A concurrent [`Counter::add`] may undo the reset.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}
