//! Values that arrive in pieces, and the memory budgets of uploads and items.

use crate::Refusal;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A memory budget: counts the reserved bytes, and refuses to exceed a limit.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    limit: AtomicUsize,
    /// The maximum number of bytes that one call can reserve.
    len_max: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Self::bounded(limit, limit)
    }

    /// Returns a budget that does not limit the total, for a map that evicts automatically. It
    /// refuses only single reservations of more than `len_max` bytes.
    pub(crate) fn unlimited(len_max: usize) -> Arc<Self> {
        Self::bounded(usize::MAX, len_max)
    }

    fn bounded(limit: usize, len_max: usize) -> Arc<Self> {
        Arc::new(Self { used: 0.into(), limit: limit.into(), len_max: len_max.into() })
    }

    /// Changes the limit. Bytes that were reserved before stay reserved.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
        self.len_max.store(limit, Relaxed);
    }

    /// Returns the maximum total of reserved bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    fn len_max(&self) -> usize {
        self.len_max.load(Relaxed)
    }

    /// Reserves `len` bytes. The caller will release `credit` bytes right afterwards, so these
    /// bytes do not count towards the limit.
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

    /// Reserves `len` bytes even above the limit. The caller releases `len` bytes right afterwards.
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

/// A reservation in a budget. Dropping it releases the bytes.
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

/// A value that arrives in pieces. Dropping it frees its memory.
#[derive(Debug)]
pub struct Upload {
    bytes: Vec<u8>,
    /// The announced length in bytes.
    len: usize,
    charge: Charge,
}

impl Upload {
    /// Starts an upload of `len` bytes. Reserves no memory yet.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if the value exceeds the budget's maximum for one reservation.
    pub(crate) fn new(budget: &Arc<Budget>, len: usize) -> Result<Self, Refusal> {
        if len > budget.len_max() {
            return Err(Refusal::TooLarge);
        }
        Ok(Self { bytes: Vec::new(), len, charge: Charge::none(Arc::clone(budget)) })
    }

    /// Appends the next piece.
    ///
    /// # Errors
    /// [`Refusal`]: the memory budget has no room for the piece, or the value exceeds the announced
    /// length.
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

    /// Reserves room for at least `filled` bytes. Usually reserves more, because otherwise each
    /// piece would require a copy of the value.
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

    /// Returns the number of bytes that are charged to the budget for the upload.
    pub(crate) fn charged(&self) -> usize {
        self.charge.len
    }
}

/// The minimum capacity of an upload in bytes, unless the announced length is shorter.
const GROWTH_MIN: usize = 16 << 10;
