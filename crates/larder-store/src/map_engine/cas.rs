//! The source of CAS values.

use crate::Refusal;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The counter follows client-chosen CAS values only below this bound, so that it never runs out of
/// values.
const FOLLOWED_MAX: u64 = 1 << 63;

/// A counter that issues CAS values, optionally up to a limit.
#[derive(Debug, Default)]
pub(crate) struct CasCounter {
    /// The last drawn value.
    last: AtomicU64,
    /// Whether there is a limit.
    is_limited: AtomicBool,
    /// The first value that must not be drawn, if there is a limit. A limited counter changes only
    /// under this lock.
    end: Mutex<u64>,
}

impl CasCounter {
    /// Returns the next value without drawing it.
    pub(crate) fn next(&self) -> u64 {
        self.last.load(Ordering::Relaxed) + 1
    }

    /// Restricts the counter to these values. The counter never falls.
    pub(crate) fn set_range(&self, range: Range<u64>) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        self.last.fetch_max(range.start.saturating_sub(1), Ordering::Relaxed);
        *end = range.end;
        self.is_limited.store(true, Ordering::Release);
    }

    /// Returns the next CAS. It is higher than `old`, unless a client chose an `old` of
    /// [`FOLLOWED_MAX`] or more, or an `old` above a limited counter.
    pub(crate) fn draw(&self, old: u64) -> Result<u64, Refusal> {
        if self.is_limited.load(Ordering::Acquire) {
            return self.draw_limited(old);
        }
        let next = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        if next > old || old >= FOLLOWED_MAX {
            return Ok(next);
        }
        // A client has chosen a CAS above the counter. The counter continues from this CAS.
        self.last.fetch_max(old, Ordering::Relaxed);
        Ok(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn draw_limited(&self, old: u64) -> Result<u64, Refusal> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        // A client may have chosen the next value as the item's old CAS. The new CAS must differ
        // from it.
        let cas = if self.next() == old { old + 1 } else { self.next() };
        if cas >= *end {
            return Err(Refusal::NoCas);
        }
        self.last.store(cas, Ordering::Relaxed);
        Ok(cas)
    }
}
