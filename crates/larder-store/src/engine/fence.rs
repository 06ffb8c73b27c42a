//! [`Fence`]: a time limit for changes.

use std::sync::atomic::{AtomicU64, Ordering};

/// The value of a permanently closed fence.
const CLOSED: u64 = u64::MAX;

/// A time after which an engine refuses changes. The owner of the fence can extend the time.
///
/// An engine checks its fence under the lock of the changed key. After the fence's time, or after
/// [`Fence::close`] has returned, no change can pass the check. A change that passed the check
/// earlier may still run, but it holds the lock of its key, so every later change of the key comes
/// after it.
#[derive(Debug)]
pub struct Fence {
    /// The time on `clock`, in milliseconds, until which changes are allowed. [`CLOSED`] if the
    /// fence was closed permanently.
    until: AtomicU64,
    clock: fn() -> u64,
}

impl Fence {
    /// Creates a fence that allows no change yet. `clock` returns milliseconds and must not stop
    /// while the process is paused.
    #[must_use]
    pub fn new(clock: fn() -> u64) -> Self {
        Self { until: AtomicU64::new(0), clock }
    }

    /// Allows changes until this time on the fence's clock. Has no effect if the fence is closed,
    /// or already allows changes for longer.
    pub fn extend(&self, until: u64) {
        let until = until.min(CLOSED - 1);
        self.until.fetch_max(until, Ordering::SeqCst);
    }

    /// Refuses all further changes, even if [`Fence::extend`] is called later.
    pub fn close(&self) {
        self.until.store(CLOSED, Ordering::SeqCst);
    }

    /// Returns whether the fence was closed permanently.
    pub fn is_closed(&self) -> bool {
        self.until.load(Ordering::SeqCst) == CLOSED
    }

    /// Returns whether changes are allowed now.
    pub fn is_open(&self) -> bool {
        let until = self.until.load(Ordering::SeqCst);
        until != CLOSED && (self.clock)() < until
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn a_fence_is_open_until_its_time_and_never_after_it_was_closed() {
        let fence = Fence::new(|| NOW.get());
        assert!(!fence.is_open(), "it allows nothing yet");
        fence.extend(5);
        fence.extend(3);
        NOW.set(4);
        assert!(fence.is_open());
        NOW.set(5);
        assert!(!fence.is_open());
        fence.extend(u64::MAX);
        assert!(fence.is_open() && !fence.is_closed());
        NOW.set(u64::MAX);
        assert!(!fence.is_open(), "a clock that fails");
        NOW.set(6);
        fence.close();
        fence.extend(7);
        assert!(fence.is_closed() && !fence.is_open());
    }
}
