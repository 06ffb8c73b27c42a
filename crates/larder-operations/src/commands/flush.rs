//! Flushing the cache.

use crate::OpContext;
use larder_store::{Engine, Expiry};

impl<E: Engine> OpContext<'_, E> {
    /// Schedules a flush: when the second of `at` starts, all items that were stored earlier are
    /// removed. If `at` is past or `Never`, removes all items immediately.
    pub fn flush(&mut self, at: Expiry) {
        let later = at.second().filter(|at| *at > self.now.secs);
        self.engine.flush(later);
        if let Some(guard) = self.guard.filter(|_| later.is_none()) {
            guard.note_flush();
        }
    }
}
