//! What an operator has set while the server runs. Larder has no LRU lists and no slabs: most of it
//! is kept so that `stats settings` shows it, as a memcached without its maintainer does.

use larder_protocol::{Ratio, Tuning};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Settings that commands change.
#[derive(Debug)]
pub struct Controls {
    crawler: AtomicBool,
    crawls: AtomicU64,
    sizes: AtomicBool,
    tuned: Mutex<Tuned>,
}

/// What is remembered for `stats settings`.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names are memcached's own, from `stats settings`")]
pub struct Tuned {
    pub crawler_sleep: u32,
    pub crawler_tocrawl: u32,
    pub hot_lru_pct: u32,
    pub warm_lru_pct: u32,
    pub hot_max_factor: Ratio,
    pub warm_max_factor: Ratio,
    pub slab_automove: u32,
    pub slab_automove_ratio: Ratio,
    pub slab_automove_freeratio: Ratio,
    pub slab_automove_window: u32,
}

impl Default for Controls {
    fn default() -> Self {
        let tuned = Tuned {
            crawler_sleep: 100,
            crawler_tocrawl: 0,
            hot_lru_pct: 20,
            warm_lru_pct: 40,
            hot_max_factor: Ratio::new(0.2),
            warm_max_factor: Ratio::new(2.0),
            slab_automove: 0,
            slab_automove_ratio: Ratio::new(0.8),
            slab_automove_freeratio: Ratio::new(0.01),
            slab_automove_window: 10,
        };
        Self {
            crawler: true.into(),
            crawls: 0.into(),
            sizes: false.into(),
            tuned: Mutex::new(tuned),
        }
    }
}

impl Controls {
    /// Whether expired items are looked for in the background.
    pub fn crawler_enabled(&self) -> bool {
        self.crawler.load(Relaxed)
    }

    pub(crate) fn enable_crawler(&self, enable: bool) {
        self.crawler.store(enable, Relaxed);
    }

    pub(crate) fn note_crawl(&self) {
        self.crawls.fetch_add(1, Relaxed);
    }

    /// Crawls and dumps that were asked for.
    pub(crate) fn crawls(&self) -> u64 {
        self.crawls.load(Relaxed)
    }

    pub(crate) fn track_sizes(&self, on: bool) {
        self.sizes.store(on, Relaxed);
    }

    /// Whether `stats sizes` counts items.
    pub(crate) fn tracks_sizes(&self) -> bool {
        self.sizes.load(Relaxed)
    }

    pub(crate) fn tuned(&self) -> Tuned {
        *self.lock()
    }

    pub(crate) fn set(&self, tuning: Tuning) {
        let mut tuned = self.lock();
        match tuning {
            Tuning::CrawlerSleep(micros) => tuned.crawler_sleep = micros,
            Tuning::CrawlerToCrawl(items) => tuned.crawler_tocrawl = items,
            Tuning::Lru { hot_pct, warm_pct, hot_factor, warm_factor } => {
                (tuned.hot_lru_pct, tuned.warm_lru_pct) = (hot_pct, warm_pct);
                (tuned.hot_max_factor, tuned.warm_max_factor) = (hot_factor, warm_factor);
            }
            Tuning::Automove(mode) => tuned.slab_automove = mode,
            Tuning::AutomoveRatio(ratio) => tuned.slab_automove_ratio = ratio,
            Tuning::AutomoveFreeRatio(ratio) => tuned.slab_automove_freeratio = ratio,
            Tuning::AutomoveWindow(secs) => tuned.slab_automove_window = secs,
            // The session refuses these.
            Tuning::LruSegmented(_) | Tuning::TemporaryTtl(_) => (),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tuned> {
        // Numbers: whatever a panic left of them is still numbers.
        self.tuned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
