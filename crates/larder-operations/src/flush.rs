//! Flushing the cache.

use crate::OpContext;
use larder_store::{Engine, Expiry};

impl<E: Engine> OpContext<'_, E> {
    /// Removes all items that are stored before `at`. The flush takes effect at once if `at` is past or
    /// `Never`.
    pub fn flush(&mut self, at: Expiry) {
        let at = match at {
            Expiry::At(at) if at > self.now => Some(at),
            Expiry::At(_) | Expiry::Never => None,
        };
        self.engine.flush(at);
    }
}
