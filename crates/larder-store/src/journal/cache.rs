//! A cache whose handles write journals.

use super::handle::JournaledHandle;
use super::journals::Journals;
use crate::cache::{Cache, CacheControl};
use std::sync::Arc;

/// A wrapper around a cache. Each of its handles appends the keys of changed items to a journal.
#[derive(Clone, Debug)]
pub struct JournaledCache<C> {
    cache: C,
    journals: Arc<Journals>,
}

impl<C: Cache> JournaledCache<C> {
    /// Makes the handles of `cache` append the keys of changed items to `journals`.
    pub fn new(cache: C, journals: Arc<Journals>) -> Self {
        Self { cache, journals }
    }

    /// Returns the inner cache. Changes through its handles are not journaled.
    pub fn inner(&self) -> &C {
        &self.cache
    }

    /// Returns the journals.
    pub fn journals(&self) -> &Arc<Journals> {
        &self.journals
    }
}

impl<C: Cache> Cache for JournaledCache<C> {
    type Engine = JournaledHandle<C::Engine>;

    fn engine(&self) -> Self::Engine {
        JournaledHandle::new(self.cache.engine(), Arc::clone(&self.journals))
    }

    fn control(&self) -> &dyn CacheControl {
        self.cache.control()
    }
}
