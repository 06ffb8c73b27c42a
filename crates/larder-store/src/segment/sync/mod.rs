//! Atomics, locks, and functions that wait for other threads. Model checkers replace all of them.
//! With `--cfg shuttle` a scheduler may switch threads between any two steps. With `--cfg loom`
//! each load may also return any older value that its ordering allows. Unit tests can check the
//! state before each store, as if the process had died there.

#[cfg(all(any(shuttle, test), not(any(loom, miri))))]
mod stepped;
#[cfg(all(any(shuttle, test), not(any(loom, miri))))]
mod steps;

#[cfg(all(test, not(any(loom, shuttle, miri))))]
pub(crate) use steps::at_each_store;

#[cfg(shuttle)]
use scheduled as chosen;

#[cfg(all(test, not(any(loom, shuttle, miri))))]
use mortal as chosen;

#[cfg(not(any(loom, shuttle, all(test, not(miri)))))]
use real as chosen;

#[cfg(loom)]
use weak as chosen;

pub(crate) use chosen::{
    AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence, wait_a_little,
    wait_for_others,
};

#[cfg(shuttle)]
mod scheduled {
    pub(crate) use super::stepped::{AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::Ordering;

    pub(crate) fn fence(_: Ordering) {
        super::steps::before_load();
    }

    pub(crate) fn wait_a_little(_: u32) {
        shuttle::thread::yield_now();
    }

    pub(crate) fn wait_for_others(_: u32) {
        shuttle::thread::yield_now();
    }
}

#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod mortal {
    pub(crate) use super::real::{
        Mutex, MutexGuard, Ordering, fence, wait_a_little, wait_for_others,
    };
    pub(crate) use super::stepped::{AtomicU32, AtomicU64, AtomicUsize};
}

#[cfg(not(any(loom, shuttle)))]
mod real {
    #[cfg(not(all(test, not(miri))))]
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::atomic::{Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};

    /// Waits briefly for the holder of a lock. `round` counts the waits: the first waits spin, and
    /// later waits yield.
    pub(crate) fn wait_a_little(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            // Yield, because the holder may need the core of this thread.
            std::thread::yield_now();
        }
    }

    /// Waits for other threads to finish a batch: yields at first, then sleeps.
    #[expect(
        clippy::disallowed_methods,
        reason = "other threads need the core; the number of waits is bounded"
    )]
    pub(crate) fn wait_for_others(round: u32) {
        if round < 32 {
            std::thread::yield_now();
        } else {
            // With more threads than cores, a thread that only yields keeps taking the core from
            // the other threads.
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

#[cfg(loom)]
mod weak {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    pub(crate) fn wait_a_little(_: u32) {
        loom::thread::yield_now();
    }

    pub(crate) fn wait_for_others(_: u32) {
        loom::thread::yield_now();
    }
}
