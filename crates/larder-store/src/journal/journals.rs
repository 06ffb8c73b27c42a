//! The journals of a cache. A journal outlives the handle that writes it.

use super::acks::Acknowledgements;
use super::notifier::Notifier;
use super::ring::{Overrun, Reader, Ring, Writer};
use crate::Seconds;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The journals of a cache, one for each handle.
#[derive(Debug)]
pub struct Journals {
    /// The length in bytes that is requested for each new journal: see [`Writer::new`].
    each: usize,
    all: Mutex<JournalList>,
    notifier: Arc<Notifier>,
    acks: Acknowledgements,
    /// The latest second for which a delayed flush was requested.
    flush_at: AtomicU32,
}

#[derive(Debug, Default)]
struct JournalList {
    /// The journals, indexed by number. No journal is ever removed.
    journals: Vec<Journal>,
    /// The numbers of journals whose handles were dropped. New handles continue these journals.
    idle: Vec<usize>,
}

/// The journal of a handle.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    pub(super) ring: Arc<Ring>,
    /// A number that is odd while the handle is in a batch.
    pub(super) batches: Arc<AtomicU64>,
}

impl Journals {
    /// Creates an empty set of journals, for `handles` handles at the same time and `bytes` bytes
    /// in all. The journal of each handle is an equal share, rounded down to a power of two, but at
    /// least 2 KiB. Each handle beyond `handles` gets another journal of the same length.
    #[must_use]
    pub fn new(bytes: usize, handles: usize) -> Arc<Self> {
        let each = bytes / handles.max(1);
        let (all, notifier, acks, flush_at) = Default::default();
        Arc::new(Self { each, all, notifier, acks, flush_at })
    }

    fn all(&self) -> MutexGuard<'_, JournalList> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the notifier for readers. A handle notifies it after each batch that changed an
    /// item, and after each flush.
    #[must_use]
    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Returns the acknowledgements of the followers.
    #[must_use]
    pub fn acks(&self) -> &Acknowledgements {
        &self.acks
    }

    /// Returns the requested size of each journal in bytes, before [`Writer::new`] rounds it.
    #[must_use]
    pub fn each(&self) -> u64 {
        self.each as u64
    }

    /// Records that a flush at this time is about to be requested.
    pub(super) fn note_flush(&self, at: Seconds) {
        self.flush_at.fetch_max(at.0, Ordering::AcqRel);
    }

    /// Returns whether a delayed flush may be pending at `now`. Until the time of a flush, the
    /// result is true even if the flush was cancelled.
    #[must_use]
    pub fn flush_pends(&self, now: Seconds) -> bool {
        self.flush_at.load(Ordering::Acquire) >= now.0
    }

    /// Returns the current end of each journal.
    #[must_use]
    pub fn ends(&self) -> Vec<u64> {
        self.all().journals.iter().map(|journal| journal.ring.end()).collect()
    }

    /// Returns the journals whose number is at least `number`, sorted by number.
    #[must_use]
    pub fn from(&self, number: usize) -> Vec<Arc<Ring>> {
        let all = self.all();
        let journals = all.journals.get(number..).unwrap_or_default();
        journals.iter().map(|journal| Arc::clone(&journal.ring)).collect()
    }

    /// Returns a reader of each journal, at these offsets, in the order of the journals. If there
    /// are fewer offsets than journals, the remaining journals are newer, and are read from their
    /// start.
    ///
    /// # Errors
    /// [`Overrun`]: the entries at an offset were overwritten or never existed, `offsets` is empty,
    /// or there are more offsets than journals.
    pub fn readers_at(&self, offsets: &[u64]) -> Result<Vec<Reader>, Overrun> {
        let rings = self.from(0);
        if offsets.is_empty() || offsets.len() > rings.len() {
            return Err(Overrun);
        }
        let offsets = offsets.iter().copied().chain(std::iter::repeat(0));
        rings.iter().zip(offsets).map(|(ring, offset)| Reader::at(ring, offset)).collect()
    }

    /// Returns whether all batches that were under way at the first call have ended. The first call
    /// receives an empty `seen` and fills it. A batch that starts later sees everything that was
    /// stored before that call.
    pub fn batches_have_ended(&self, seen: &mut Vec<u64>) -> bool {
        fence(Ordering::SeqCst);
        let all = self.all();
        let batches = || all.journals.iter().map(|journal| journal.batches.load(Ordering::Acquire));
        if seen.is_empty() {
            seen.extend(batches());
        }
        seen.iter().zip(batches()).all(|(before, now)| before % 2 == 0 || now != *before)
    }

    /// Returns a journal for a new handle, and the journal's number. Reuses the journal of a
    /// dropped handle if there is one.
    pub(super) fn take(&self) -> (usize, Journal) {
        let mut all = self.all();
        let number = all.idle.pop().unwrap_or_else(|| {
            let (ring, batches) = (Arc::clone(Writer::new(self.each).ring()), Arc::default());
            all.journals.push(Journal { ring, batches });
            all.journals.len() - 1
        });
        (number, all.journals[number].clone())
    }

    /// Makes the journal of a dropped handle available to a new handle.
    pub(super) fn give_back(&self, number: usize) {
        self.all().idle.push(number);
    }
}
