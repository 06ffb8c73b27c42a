//! Settings that an operator changes while the server runs. Larder has no LRU lists and no slabs, so
//! most settings are kept only for `stats settings`, as in a memcached without its maintainer thread.

use crate::options::suboptions::{Shown, Suboptions};
use larder_protocol::Tuning;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Settings that commands change.
#[derive(Debug)]
pub struct Controls {
    crawler: AtomicBool,
    crawls: AtomicU64,
    dumps_running: AtomicU64,
    sizes: AtomicBool,
    tuned: Mutex<Shown>,
}

impl Controls {
    /// The settings of the command line.
    pub(crate) fn new(options: &Suboptions) -> Self {
        Self {
            crawler: options.lru_crawler.into(),
            crawls: 0.into(),
            dumps_running: 0.into(),
            sizes: options.track_sizes.into(),
            tuned: Mutex::new(options.shown),
        }
    }

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

    /// A dump begins, or ends.
    pub(crate) fn note_dump(&self, running: bool) {
        if running {
            self.dumps_running.fetch_add(1, Relaxed);
        } else {
            self.dumps_running.fetch_sub(1, Relaxed);
        }
    }

    /// Whether any dump is under way.
    pub(crate) fn dumps_run(&self) -> bool {
        self.dumps_running.load(Relaxed) > 0
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

    pub(crate) fn tuned(&self) -> Shown {
        *self.lock()
    }

    pub(crate) fn set(&self, tuning: Tuning) {
        let mut tuned = self.lock();
        match tuning {
            Tuning::CrawlerSleep(micros) => tuned.lru_crawler_sleep = micros,
            Tuning::CrawlerToCrawl(items) => tuned.lru_crawler_tocrawl = items,
            Tuning::Lru { hot_pct, warm_pct, hot_factor, warm_factor } => {
                (tuned.hot_lru_pct, tuned.warm_lru_pct) = (hot_pct, warm_pct);
                (tuned.hot_max_factor, tuned.warm_max_factor) =
                    (hot_factor.get(), warm_factor.get());
            }
            Tuning::Automove(mode) => tuned.slab_automove = mode,
            Tuning::AutomoveRatio(ratio) => tuned.slab_automove_ratio = ratio.get(),
            Tuning::AutomoveFreeRatio(ratio) => tuned.slab_automove_freeratio = ratio.get(),
            Tuning::AutomoveWindow(secs) => tuned.slab_automove_window = secs,
            // The session refuses these.
            Tuning::LruSegmented(_) | Tuning::TemporaryTtl(_) => (),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        // These are numbers, so they are valid even after a panic of a thread that held the lock.
        self.tuned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
