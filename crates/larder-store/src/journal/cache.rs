//! A cache whose handles write journals.

use super::handle::Journaled;
use super::journals::Journals;
use crate::cache::{Cache, CacheControl};
use crate::segment::MissRatioCurve;
use crate::{EvictionObserver, FlashGauges, FlashPage, FlashSettings, Gauges, LimitRefused};
use std::sync::Arc;

/// A cache whose handles keep journals.
#[derive(Clone, Debug)]
pub struct JournaledCache<C> {
    cache: C,
    journals: Arc<Journals>,
}

impl<C: Cache> JournaledCache<C> {
    /// Has the handles of a cache keep journals.
    pub fn new(cache: C, journals: Arc<Journals>) -> Self {
        Self { cache, journals }
    }

    /// The cache itself, whose handles keep no journals.
    pub fn inner(&self) -> &C {
        &self.cache
    }

    /// The journals.
    pub fn journals(&self) -> &Arc<Journals> {
        &self.journals
    }
}

impl<C: Cache> Cache for JournaledCache<C> {
    type Engine = Journaled<C::Engine>;

    fn engine(&self) -> Self::Engine {
        Journaled::new(self.cache.engine(), Arc::clone(&self.journals))
    }
}

impl<C: Cache> CacheControl for JournaledCache<C> {
    fn gauges(&self) -> Gauges {
        self.cache.gauges()
    }

    fn reset_counters(&self) {
        self.cache.reset_counters();
    }

    fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        self.cache.miss_ratio_curve()
    }

    fn flash_gauges(&self) -> Option<FlashGauges> {
        self.cache.flash_gauges()
    }

    fn flash_pages(&self) -> Vec<FlashPage> {
        self.cache.flash_pages()
    }

    fn flash_settings(&self) -> Option<FlashSettings> {
        self.cache.flash_settings()
    }

    fn set_flash_settings(&self, settings: FlashSettings) {
        self.cache.set_flash_settings(settings);
    }

    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.cache.set_limit(bytes)
    }

    fn set_cas_epoch(&self, epoch: u32) {
        self.cache.set_cas_epoch(epoch);
    }

    fn observe_evictions(&self, observer: EvictionObserver) {
        self.cache.observe_evictions(observer);
    }
}
