//! Settings that commands change while the server runs. Larder has no LRU lists and no slabs, so
//! most of these settings only appear in `stats settings`, as in memcached without its maintainer
//! thread.

use crate::loaded_scripts::LoadedScripts;
use crate::options::Options;
use crate::options::flash::FlashShown;
use crate::options::suboptions::UnusedSettings;
use larder_protocol::{FlashTuning, Tuning};
use larder_store::FlashSettings;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Settings that commands change.
#[derive(Debug)]
pub struct Controls {
    crawler: AtomicBool,
    crawls: AtomicU64,
    dumps_running: AtomicU64,
    sizes: AtomicBool,
    tuned: Mutex<UnusedSettings>,
    flash: Mutex<TunedFlash>,
    /// The current memory limit, in MiB.
    pub(crate) limit_mib: AtomicUsize,
    pub(crate) scripts: LoadedScripts,
}

/// The settings that the `extstore` command changes. As in memcached, clients can change them even
/// without a flash tier.
#[derive(Clone, Copy, Debug)]
pub struct TunedFlash {
    /// The settings of the flash tier.
    pub settings: FlashSettings,
    /// Settings that clients can change and read, but that have no effect.
    pub shown: FlashShown,
}

impl Controls {
    /// Creates the settings from the command line. `flash` contains the initial settings of the
    /// flash tier, or is `None` without a flash tier.
    pub(crate) fn new(options: &Options, flash: Option<FlashSettings>) -> Self {
        let limit_mib = options.memory_limit.into();
        let options = &options.suboptions;
        let (settings, shown) = (flash.unwrap_or(options.flash.settings), options.flash.shown);
        Self {
            crawler: options.lru_crawler.into(),
            crawls: 0.into(),
            dumps_running: 0.into(),
            sizes: options.track_sizes.into(),
            tuned: Mutex::new(options.shown),
            flash: Mutex::new(TunedFlash { settings, shown }),
            limit_mib,
            scripts: LoadedScripts::default(),
        }
    }

    /// Returns whether the background search for expired items is enabled.
    pub fn crawler_enabled(&self) -> bool {
        self.crawler.load(Relaxed)
    }

    pub(crate) fn enable_crawler(&self, enable: bool) {
        self.crawler.store(enable, Relaxed);
    }

    pub(crate) fn note_crawl(&self) {
        self.crawls.fetch_add(1, Relaxed);
    }

    /// Records that a dump has started (`running`) or ended.
    pub(crate) fn note_dump(&self, running: bool) {
        if running {
            self.dumps_running.fetch_add(1, Relaxed);
        } else {
            self.dumps_running.fetch_sub(1, Relaxed);
        }
    }

    /// Returns whether a dump is running.
    pub(crate) fn dumps_run(&self) -> bool {
        self.dumps_running.load(Relaxed) > 0
    }

    /// Returns the number of requested crawls and dumps.
    pub(crate) fn crawls(&self) -> u64 {
        self.crawls.load(Relaxed)
    }

    pub(crate) fn track_sizes(&self, on: bool) {
        self.sizes.store(on, Relaxed);
    }

    /// Returns whether `stats sizes` counts items.
    pub(crate) fn tracks_sizes(&self) -> bool {
        self.sizes.load(Relaxed)
    }

    pub(crate) fn tuned(&self) -> UnusedSettings {
        *self.lock()
    }

    pub(crate) fn apply_tuning(&self, tuning: Tuning) {
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
            // The session refuses the first two; `tune_flash` handles the last.
            Tuning::LruSegmented(_) | Tuning::TemporaryTtl(_) | Tuning::Flash(_) => (),
        }
    }

    pub(crate) fn tuned_flash(&self) -> TunedFlash {
        *lock(&self.flash)
    }

    /// Changes a setting for the `extstore` command, and calls `apply` with all settings of the
    /// flash tier.
    pub(crate) fn tune_flash(&self, tuning: FlashTuning, apply: impl FnOnce(FlashSettings)) {
        let mut flash = lock(&self.flash);
        let TunedFlash { settings, shown } = &mut *flash;
        match tuning {
            // `usize` has at least 32 bits.
            FlashTuning::ItemSize(bytes) => settings.item_size = bytes as usize,
            FlashTuning::ItemAge(secs) => {
                settings.item_age = Some(secs).filter(|&secs| secs != u32::MAX);
            }
            FlashTuning::LowTtl(secs) => settings.low_ttl = secs,
            FlashTuning::RecacheRate(rate) => settings.recache_rate = rate,
            FlashTuning::CompactUnder(pages) => settings.compact_under = pages,
            FlashTuning::DropUnder(pages) => settings.drop_under = pages,
            FlashTuning::MaxFrag(share) => settings.max_frag = share.get(),
            FlashTuning::DropUnread(on) => settings.drop_unread = on,
            FlashTuning::MaxSleep(micros) => shown.max_sleep = micros,
            FlashTuning::FreeMemchunks => (),
        }
        // Call `apply` with the lock held, so that concurrent changes reach the flash tier in the
        // same order.
        apply(*settings);
    }

    fn lock(&self) -> MutexGuard<'_, UnusedSettings> {
        lock(&self.tuned)
    }
}

fn lock<T>(settings: &Mutex<T>) -> MutexGuard<'_, T> {
    // The settings stay valid if a thread panics while holding the lock.
    settings.lock().unwrap_or_else(PoisonError::into_inner)
}
