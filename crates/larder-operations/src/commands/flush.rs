//! Flushing the cache.

use crate::OpContext;
use larder_store::{Engine, Expiry};

impl<E: Engine> OpContext<'_, E> {
    /// Removes all items that were stored before the second of `at`. The flush takes effect immediately if `at` is past
    /// or `Never`.
    pub fn flush(&mut self, at: Expiry) {
        self.engine.flush(at.second().filter(|at| *at > self.now.secs));
    }
}
