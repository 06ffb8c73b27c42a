//! Journals: the keys of the items that were changed, for those who keep a copy of a cache.
//!
//! [`JournaledCache`] wraps any cache. Its handles, [`Journaled`], behave like those of the cache, and each appends
//! the key of an item to a journal of its own after it has changed the item, and before its caller can answer. Whoever reads a key from a journal and looks the item up afterwards therefore finds the change, or
//! a later one. The items themselves are not in journals: a key that is written a thousand times is copied once.
//!
//! Evictions and expiries are not changes. Flushes are counted by the engine: [`crate::Engine::flush_generation`].

mod acks;
mod bell;
mod handle;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod ring;

pub use acks::{AckMode, AckPosition, Acknowledgements};
pub use bell::Bell;
pub use handle::{Journaled, Position};
pub use ring::{Entry, Kind, Overrun, Reader, Ring, Writer};

use crate::cache::{Cache, CacheControl};
use crate::segment::MissRatioCurve;
use crate::{EvictionObserver, FlashGauges, FlashPage, FlashSettings, Gauges, LimitRefused};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The journals of a cache, one for each handle that was made.
#[derive(Debug)]
pub struct Journals {
    /// The length of each, in bytes.
    each: usize,
    all: Mutex<All>,
    bell: Arc<Bell>,
    acks: Acknowledgements,
}

#[derive(Debug, Default)]
struct All {
    /// The journals by their numbers. None is ever removed.
    journals: Vec<Journal>,
    /// The numbers of those whose handles are gone: the next handles continue them.
    idle: Vec<usize>,
}

/// The journal of a handle.
#[derive(Clone, Debug)]
struct Journal {
    ring: Arc<Ring>,
    /// Odd while the handle is in a batch.
    batches: Arc<AtomicU64>,
}

impl Journals {
    /// Journals of `bytes` together for `handles` handles that there are at the same time. More handles have more.
    #[must_use]
    pub fn new(bytes: usize, handles: usize) -> Arc<Self> {
        let each = bytes / handles.max(1);
        let (all, bell, acks) = Default::default();
        Arc::new(Self { each, all, bell, acks })
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings after each batch in which something was written.
    #[must_use]
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// What followers have acknowledged.
    #[must_use]
    pub fn acks(&self) -> &Acknowledgements {
        &self.acks
    }

    /// Where each journal ends now.
    #[must_use]
    pub fn ends(&self) -> Vec<u64> {
        self.all().journals.iter().map(|journal| journal.ring.end()).collect()
    }

    /// The journals from this number on, in the order in which they were made. None is ever removed.
    #[must_use]
    pub fn from(&self, number: usize) -> Vec<Arc<Ring>> {
        let all = self.all();
        let journals = all.journals.get(number..).unwrap_or_default();
        journals.iter().map(|journal| Arc::clone(&journal.ring)).collect()
    }

    /// Whether the batches have ended that were under way at the first call with these numbers, which are empty then.
    /// A batch that begins later sees what was said before that call.
    pub fn settle(&self, seen: &mut Vec<u64>) -> bool {
        fence(Ordering::SeqCst);
        let all = self.all();
        let batches = || all.journals.iter().map(|journal| journal.batches.load(Ordering::Acquire));
        if seen.is_empty() {
            seen.extend(batches());
        }
        seen.iter().zip(batches()).all(|(before, now)| before % 2 == 0 || now != *before)
    }

    /// A journal for a new handle, and its number: one whose handle is gone, or another one.
    fn take(&self) -> (usize, Journal) {
        let mut all = self.all();
        let number = all.idle.pop().unwrap_or_else(|| {
            let (ring, batches) = (Arc::clone(Writer::new(self.each).ring()), Arc::default());
            all.journals.push(Journal { ring, batches });
            all.journals.len() - 1
        });
        (number, all.journals[number].clone())
    }

    /// The handle of a journal is gone.
    fn give_back(&self, number: usize) {
        self.all().idle.push(number);
    }
}

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
