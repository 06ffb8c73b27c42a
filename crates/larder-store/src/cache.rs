//! A cache as its threads share it: where their handles come from, and what can be asked of all of
//! it at once.

use crate::segment::MissRatioCurve;
use crate::{Engine, EvictionObserver, Gauges, LimitRefused};

/// What can be asked of a cache from any thread, without a handle.
pub trait CacheControl: Send + Sync {
    /// The totals.
    fn gauges(&self) -> Gauges;

    /// Zeroes what `stats reset` zeroes.
    fn reset_counters(&self);

    /// What the hit ratio would be under other limits, from an engine that knows.
    fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        None
    }

    /// Changes the memory for items, in bytes.
    ///
    /// # Errors
    /// [`LimitRefused`]: it stays as it was.
    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused>;

    /// Has `observer` told of every eviction. Only the first observer is.
    fn observe_evictions(&self, observer: EvictionObserver);
}

/// A cache that threads can make handles of.
pub trait Cache: CacheControl + Clone + 'static {
    /// One thread's way in, made and used on that thread.
    type Engine: Engine + 'static;

    /// Makes a handle for the thread that calls.
    fn engine(&self) -> Self::Engine;
}

impl Cache for crate::segment::Cache {
    type Engine = crate::segment::Handle;

    fn engine(&self) -> Self::Engine {
        self.handle()
    }
}

impl CacheControl for crate::segment::Cache {
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

    fn observe_evictions(&self, observer: EvictionObserver) {
        Self::observe_evictions(self, observer);
    }
}
