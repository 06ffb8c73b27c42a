//! A cache whose handles write journals.

use super::handle::Journaled;
use super::journals::Journals;
use crate::cache::{Cache, CacheControl};
use std::sync::Arc;

/// A cache whose handles keep journals, unless it was made without.
///
/// One type serves both cases, so that a server with replicas and one without share their code. Without journals a
/// batch costs two branches more than with the engine alone, and a change two.
#[derive(Clone, Debug)]
pub struct JournaledCache<C> {
    cache: C,
    journals: Option<Arc<Journals>>,
}

impl<C: Cache> JournaledCache<C> {
    /// The handles of this cache append the keys of changed items to `journals`, if there are any.
    pub fn new(cache: C, journals: Option<Arc<Journals>>) -> Self {
        Self { cache, journals }
    }

    /// The cache itself.
    pub fn inner(&self) -> &C {
        &self.cache
    }

    /// The same cache, with handles that keep no journals.
    #[must_use]
    pub fn without_journals(&self) -> Self {
        Self { cache: self.cache.clone(), journals: None }
    }
}

impl<C: Cache> Cache for JournaledCache<C> {
    type Engine = Journaled<C::Engine>;

    fn engine(&self) -> Self::Engine {
        Journaled::new(self.cache.engine(), self.journals.as_ref())
    }

    fn control(&self) -> &dyn CacheControl {
        self.cache.control()
    }
}
