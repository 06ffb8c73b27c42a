//! The traits of a cache that several threads share. [`Cache`] makes a handle for each thread, and
//! [`CacheControl`] reports on and controls the whole cache.

use crate::segment::MissRatioCurve;
use crate::{
    ChangeObserver, Engine, EvictionObserver, FlashGauges, FlashPage, FlashSettings, Gauges,
    LimitRefused,
};
use std::ops::Range;

/// Operations on a whole cache. Any thread can call them, without a handle.
pub trait CacheControl: Send + Sync {
    /// Returns the cache's totals.
    fn gauges(&self) -> Gauges;

    /// Zeroes the counters that `stats reset` zeroes. The number of items and their bytes stay.
    fn reset_counters(&self);

    /// Returns an estimate of the hit ratio under other limits, or `None` if the engine has no
    /// estimate.
    fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        None
    }

    /// Returns the totals of the flash tier, or `None` without a flash tier.
    fn flash_gauges(&self) -> Option<FlashGauges> {
        None
    }

    /// Returns the pages of the flash tier, sorted by number. The list is empty without a flash
    /// tier.
    fn flash_pages(&self) -> Vec<FlashPage> {
        Vec::new()
    }

    /// Returns the settings of the flash tier, or `None` without a flash tier.
    fn flash_settings(&self) -> Option<FlashSettings> {
        None
    }

    /// Changes the settings of the flash tier. Has no effect without a flash tier.
    fn set_flash_settings(&self, _settings: FlashSettings) {}

    /// Changes the memory limit to `bytes`. If the limit is lowered, an engine that evicts frees
    /// the memory later, in [`Maintenance::maintain`].
    ///
    /// # Errors
    /// [`LimitRefused`]: the limit stays as it was.
    ///
    /// [`Maintenance::maintain`]: crate::Maintenance::maintain
    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused>;

    /// Returns the first CAS value that no handle has taken yet.
    fn next_cas(&self) -> u64;

    /// Restricts fresh CAS values to `range` from now on. A leader of a group calls this function
    /// with values that no other leader draws. When the range is used up, stores that need a fresh
    /// value get [`Refusal::NoCas`](crate::Refusal::NoCas). The counter never falls, so a start
    /// below [`CacheControl::next_cas`] has no effect. A handle of the segment engine may still use
    /// up to 31 values that it took from the counter earlier.
    fn set_cas_range(&self, range: Range<u64>);

    /// Registers an observer: from now on, the cache calls it for each item that it evicts from
    /// memory. Only the first call has an effect.
    fn observe_evictions(&self, observer: EvictionObserver);

    /// Registers an observer: from now on, the cache calls it for each change of an item except
    /// evictions. If a lookup that starts after this call does not see a change yet, the cache
    /// reports the change to the observer. Only the first call has an effect.
    fn observe_changes(&self, observer: ChangeObserver);
}

/// A cache that makes a handle for each thread.
pub trait Cache: Clone + Send + Sync + 'static {
    /// A handle to the cache. One thread uses it at a time.
    type Engine: Engine + Send + 'static;

    /// Makes a handle for the calling thread.
    fn engine(&self) -> Self::Engine;

    /// Returns the operations on the cache as a whole. A wrapper returns the operations of its
    /// inner cache.
    fn control(&self) -> &dyn CacheControl;
}

impl Cache for crate::segment::Cache {
    type Engine = crate::segment::Handle;

    fn engine(&self) -> Self::Engine {
        self.handle()
    }

    fn control(&self) -> &dyn CacheControl {
        self
    }
}

impl CacheControl for crate::segment::Cache {
    fn flash_gauges(&self) -> Option<FlashGauges> {
        self.flash_gauges()
    }

    fn flash_pages(&self) -> Vec<FlashPage> {
        self.flash_pages()
    }

    fn flash_settings(&self) -> Option<FlashSettings> {
        self.flash_settings()
    }

    fn set_flash_settings(&self, settings: FlashSettings) {
        self.set_flash_settings(settings);
    }

    fn gauges(&self) -> Gauges {
        Self::gauges(self)
    }

    fn reset_counters(&self) {
        Self::reset_counters(self);
    }

    fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        Some(Self::miss_ratio_curve(self))
    }

    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        Self::set_limit(self, bytes)
    }

    fn next_cas(&self) -> u64 {
        Self::next_cas(self)
    }

    fn set_cas_range(&self, range: Range<u64>) {
        Self::set_cas_range(self, range);
    }

    fn observe_evictions(&self, observer: EvictionObserver) {
        Self::observe_evictions(self, observer);
    }

    fn observe_changes(&self, observer: ChangeObserver) {
        Self::observe_changes(self, observer);
    }
}
