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
use std::sync::{Arc, Mutex, PoisonError};

/// The journals of a cache, one for each handle that was made.
#[derive(Debug)]
pub struct Journals {
    /// The length of each, in bytes.
    each: usize,
    rings: Mutex<Vec<Arc<Ring>>>,
    bell: Arc<Bell>,
    acks: Arc<Acknowledgements>,
    /// Of each handle, a number that is odd while it is in a batch.
    batches: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Journals {
    /// Journals of `bytes` together for `handles` handles. More handles have more.
    #[must_use]
    pub fn new(bytes: usize, handles: usize) -> Arc<Self> {
        let each = bytes / handles.max(1);
        let (rings, bell, acks, batches) = Default::default();
        Arc::new(Self { each, rings, bell, acks, batches })
    }

    /// Rings after each batch in which something was written.
    #[must_use]
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// What followers have acknowledged.
    #[must_use]
    pub fn acks(&self) -> &Arc<Acknowledgements> {
        &self.acks
    }

    /// Where each journal ends now.
    #[must_use]
    pub fn ends(&self) -> Vec<u64> {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.iter().map(|ring| ring.end()).collect()
    }

    /// The journals from this number on, in the order in which they were made. None is ever removed.
    #[must_use]
    pub fn from(&self, number: usize) -> Vec<Arc<Ring>> {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.get(number..).unwrap_or_default().to_vec()
    }

    /// Whether the batches have ended that were under way at the first call with these numbers, which are empty then.
    /// A batch that begins later sees what was said before that call.
    pub fn settle(&self, seen: &mut Vec<u64>) -> bool {
        fence(Ordering::SeqCst);
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_empty() {
            *seen = batches.iter().map(|batch| batch.load(Ordering::Acquire)).collect();
        }
        let mut pairs = seen.iter().zip(batches.iter());
        pairs.all(|(before, now)| before % 2 == 0 || now.load(Ordering::Acquire) != *before)
    }

    /// Another journal, its number, and the number of its batches.
    fn add(&self) -> (usize, Writer, Arc<AtomicU64>) {
        let (writer, batches) = (Writer::new(self.each), Arc::default());
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.push(Arc::clone(writer.ring()));
        let mut all = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::clone(&batches));
        (rings.len() - 1, writer, batches)
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
        let (journal, bell) = (self.journals.add(), Arc::clone(self.journals.bell()));
        let acks = Arc::clone(self.journals.acks());
        Journaled::new(self.cache.engine(), journal, bell, acks)
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
