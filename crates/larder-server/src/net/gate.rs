//! The gate, which pauses and resumes accepting connections. Under `-o no_maxconns_fast`,
//! connections beyond the limit wait in the listen backlog until another connection closes. While
//! the system has no free file descriptors, all new connections wait in the backlog.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The gate. Only the accepting thread opens and closes it.
#[derive(Debug, Default)]
pub struct Gate {
    /// The bits [`FULL`] and [`EXHAUSTED`].
    closed: AtomicU8,
    /// The number of times that the gate has closed since the last reset.
    closings: AtomicU64,
    /// The time at which the gate closed (`None` if it is open), and the total duration of earlier
    /// periods in which it was closed.
    closed_for: Mutex<(Option<Instant>, Duration)>,
}

/// The bit that is set while the limit of `-c` is reached.
const FULL: u8 = 1;
/// The bit that is set after accepting has failed because the system lacks resources, such as file
/// descriptors or memory for a socket.
const EXHAUSTED: u8 = 2;

impl Gate {
    /// Returns whether connections must wait.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst) != 0
    }

    /// Records whether the system has resources for another connection.
    pub(crate) fn set_exhausted(&self, exhausted: bool) {
        if exhausted {
            self.close(EXHAUSTED);
        } else {
            self.open(EXHAUSTED);
        }
    }

    /// Returns the number of times that the gate has closed since the last reset.
    pub(crate) fn closings(&self) -> u64 {
        self.closings.load(SeqCst)
    }

    /// Returns the total time for which the gate was closed since the last reset. If a reset
    /// happens while the gate is closed, the total also includes the time from the closing to the
    /// reset.
    pub(crate) fn closed_for(&self) -> Duration {
        let (since, before) = *self.lock();
        before + since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Resets the number of closings and the total time for which the gate was closed (`stats
    /// reset`).
    pub(crate) fn reset(&self) {
        self.closings.store(0, SeqCst);
        self.lock().1 = Duration::ZERO;
    }

    /// Returns whether the server may accept another connection. Closes the gate if `has_room` is
    /// false. While the gate is closed, a thread that closes a connection must wake the accepting
    /// thread.
    pub(crate) fn passes(&self, has_room: impl Fn() -> bool) -> bool {
        if has_room() {
            self.open(FULL);
            return true;
        }
        self.close(FULL);
        // Check again: a thread that closed a connection before the gate closed does not wake the
        // accepting thread.
        let passes = has_room();
        if passes {
            self.open(FULL);
        }
        passes
    }

    fn close(&self, cause: u8) {
        if self.closed.fetch_or(cause, SeqCst) == 0 {
            self.closings.fetch_add(1, SeqCst);
            self.lock().0 = Some(Instant::now());
        }
    }

    fn open(&self, cause: u8) {
        // Usually, the gate is already open, and this function writes nothing.
        if self.is_closed() && self.closed.fetch_and(!cause, SeqCst) == cause {
            let mut times = self.lock();
            let since = times.0.take();
            times.1 += since.map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Instant>, Duration)> {
        // The times stay valid if a thread panics while holding the lock.
        self.closed_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_counts_once_until_it_opens() {
        let gate = Gate::default();
        assert!(gate.passes(|| true));
        assert!(!gate.is_closed());
        assert!(!gate.passes(|| false) && !gate.passes(|| false));
        assert_eq!((gate.is_closed(), gate.closings()), (true, 1));
        assert!(gate.passes(|| true));
        let closed_for = gate.closed_for();
        assert!(!gate.is_closed() && closed_for > Duration::ZERO);
        assert_eq!(gate.closed_for(), closed_for, "the time stops while the gate is open");
        assert!(!gate.passes(|| false));
        assert_eq!(gate.closings(), 2);
    }

    #[test]
    fn a_gate_closed_for_two_reasons_opens_when_both_are_gone() {
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
