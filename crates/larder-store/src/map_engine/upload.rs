//! Values that arrive in pieces, and the memory that they and the items are charged.

use crate::Refusal;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// So many bytes, and no more.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    limit: AtomicUsize,
    /// The most that can be taken at once.
    len_max: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Self::bounded(limit, limit)
    }

    /// One that only counts what is taken, for who evicts by himself.
    pub(crate) fn unlimited(len_max: usize) -> Arc<Self> {
        Self::bounded(usize::MAX, len_max)
    }

    fn bounded(limit: usize, len_max: usize) -> Arc<Self> {
        Arc::new(Self { used: 0.into(), limit: limit.into(), len_max: len_max.into() })
    }

    /// Changes the limit. What is taken already stays so.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
        self.len_max.store(limit, Relaxed);
    }

    /// The most that can be taken.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    fn len_max(&self) -> usize {
        self.len_max.load(Relaxed)
    }

    /// Takes `len` bytes. `credit` of those in use are given back right afterwards.
    pub(crate) fn take(&self, len: usize, credit: usize) -> Result<(), Refusal> {
        if len > self.len_max() {
            return Err(Refusal::TooLarge);
        }
        let fits = |used: usize| {
            let used = used.checked_add(len)?;
            (used.saturating_sub(credit) <= self.limit()).then_some(used)
        };
        match self.used.fetch_update(Relaxed, Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::OutOfMemory),
        }
    }

    /// Takes `len` bytes in place of as many that are given back right afterwards.
    pub(crate) fn take_anyway(&self, len: usize) {
        self.used.fetch_add(len, Relaxed);
    }

    pub(crate) fn give(&self, len: usize) {
        self.used.fetch_sub(len, Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }
}

/// Bytes taken from a budget until it is dropped.
#[derive(Debug)]
struct Charge {
    budget: Arc<Budget>,
    len: usize,
}

impl Charge {
    fn none(budget: Arc<Budget>) -> Self {
        Self { budget, len: 0 }
    }

    fn grow(&mut self, len: usize) -> Result<(), Refusal> {
        self.budget.take(len, 0)?;
        self.len += len;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give(self.len);
    }
}

/// A value that arrives in pieces. Dropping it gives its memory back.
#[derive(Debug)]
pub struct Upload {
    bytes: Vec<u8>,
    /// The announced length.
    len: usize,
    charge: Charge,
}

impl Upload {
    /// # Errors
    /// [`Refusal::TooLarge`] if it can never fit.
    pub(crate) fn new(budget: &Arc<Budget>, len: usize) -> Result<Self, Refusal> {
        if len > budget.len_max() {
            return Err(Refusal::TooLarge);
        }
        Ok(Self { bytes: Vec::new(), len, charge: Charge::none(Arc::clone(budget)) })
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// [`Refusal`]: no memory for it, or more than was announced.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let filled = self.bytes.len() + bytes.len();
        if filled > self.len {
            return Err(Refusal::TooLarge);
        }
        if filled > self.bytes.capacity() {
            self.grow(filled)?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Makes room for `filled` bytes, and as it has to move anyway, for some more.
    fn grow(&mut self, filled: usize) -> Result<(), Refusal> {
        let capacity = filled.max(2 * self.bytes.capacity()).max(GROWTH_MIN).min(self.len);
        self.charge.grow(capacity - self.bytes.capacity())?;
        let more = capacity - self.bytes.len();
        self.bytes.try_reserve_exact(more).map_err(|_| Refusal::OutOfMemory)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    /// Bytes that it is charged.
    pub(crate) fn charged(&self) -> usize {
        self.charge.len
    }
}

/// The first piece that an upload takes, in bytes.
const GROWTH_MIN: usize = 16 << 10;
