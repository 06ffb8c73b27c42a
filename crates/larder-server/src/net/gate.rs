//! Whether connections are accepted. Under `-o no_maxconns_fast` connections beyond the limit wait at
//! the listener until one closes. All of them wait while the system has no more file descriptors.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The gate. Only the thread that accepts connections moves it.
#[derive(Debug, Default)]
pub struct Gate {
    /// Bits of [`FULL`] and [`EXHAUSTED`].
    closed: AtomicU8,
    /// How often it was closed.
    closings: AtomicU64,
    /// The time since which it is closed, and for how long it was closed before.
    closed_for: Mutex<(Option<Instant>, Duration)>,
}

/// There are as many connections as `-c` allows.
const FULL: u8 = 1;
/// The system has no more file descriptors, or memory for one.
const EXHAUSTED: u8 = 2;

impl Gate {
    /// Whether connections have to wait.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst) != 0
    }

    /// The system can't give another connection, or can again.
    pub(crate) fn set_exhausted(&self, exhausted: bool) {
        if exhausted {
            self.close(EXHAUSTED);
        } else {
            self.open(EXHAUSTED);
        }
    }

    /// How often they had to wait.
    pub(crate) fn closings(&self) -> u64 {
        self.closings.load(SeqCst)
    }

    /// For how long they had to wait, all together.
    pub(crate) fn closed_for(&self) -> Duration {
        let (since, before) = *self.lock();
        before + since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Sets both counts to 0 (`stats reset`).
    pub(crate) fn reset(&self) {
        self.closings.store(0, SeqCst);
        self.lock().1 = Duration::ZERO;
    }

    /// Lets a connection through if `has_room` is true, else closes: the thread that closes a connection
    /// then has to wake the one that accepts them.
    pub(crate) fn passes(&self, has_room: impl Fn() -> bool) -> bool {
        if has_room() {
            self.open(FULL);
            return true;
        }
        self.close(FULL);
        // A connection may have closed before its thread could see the gate closed.
        let passes = has_room();
        if passes {
            self.open(FULL);
        }
        passes
    }

    fn close(&self, why: u8) {
        if self.closed.fetch_or(why, SeqCst) == 0 {
            self.closings.fetch_add(1, SeqCst);
            self.lock().0 = Some(Instant::now());
        }
    }

    fn open(&self, why: u8) {
        // The gate is nearly always open, and then nothing is written.
        if self.is_closed() && self.closed.fetch_and(!why, SeqCst) == why {
            let mut times = self.lock();
            let since = times.0.take();
            times.1 += since.map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Instant>, Duration)> {
        // These are times, so they are valid even after a panic of a thread that held the lock.
        self.closed_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closing_counts_once_until_it_opens() {
        let gate = Gate::default();
        assert!(gate.passes(|| true));
        assert!(!gate.is_closed());
        assert!(!gate.passes(|| false) && !gate.passes(|| false));
        assert_eq!((gate.is_closed(), gate.closings()), (true, 1));
        assert!(gate.passes(|| true));
        let closed_for = gate.closed_for();
        assert!(!gate.is_closed() && closed_for > Duration::ZERO);
        assert_eq!(gate.closed_for(), closed_for, "it stands still while the gate is open");
        assert!(!gate.passes(|| false));
        assert_eq!(gate.closings(), 2);
    }

    #[test]
    fn a_gate_that_is_closed_twice_over_opens_when_neither_reason_is_left() {
        let gate = Gate::default();
        assert!(!gate.passes(|| false));
        gate.set_exhausted(true);
        gate.set_exhausted(true);
        assert!(gate.passes(|| true));
        assert_eq!((gate.is_closed(), gate.closings()), (true, 1));
        gate.set_exhausted(false);
        assert!(!gate.is_closed());
        gate.set_exhausted(true);
        assert_eq!((gate.is_closed(), gate.closings()), (true, 2));
    }
}
