//! Atomics, locks, and waiting for them. Model checks replace all of them: with `--cfg shuttle` a
//! scheduler may switch threads between any two steps, and with `--cfg loom` each load may also return
//! any older value that its ordering allows.

#[cfg(shuttle)]
mod modelled;

#[cfg(shuttle)]
use modelled as chosen;

#[cfg(not(any(loom, shuttle)))]
use real as chosen;

#[cfg(loom)]
use weak as chosen;

pub(super) use chosen::{
    AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence, wait_a_little,
    wait_for_others,
};

#[cfg(not(any(loom, shuttle)))]
mod real {
    pub(in super::super) use std::sync::atomic::{
        AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(in super::super) use std::sync::{Mutex, MutexGuard};

    /// Waits briefly for the holder of a lock.
    pub(in super::super) fn wait_a_little(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            // The holder may wait for the core of this thread.
            std::thread::yield_now();
        }
    }

    /// Waits for other threads to finish a batch: yields at first, then sleeps.
    #[expect(clippy::disallowed_methods, reason = "a bounded number of times, for other threads")]
    pub(in super::super) fn wait_for_others(round: u32) {
        if round < 32 {
            std::thread::yield_now();
        } else {
            // With more threads than cores, a thread that only yields keeps taking the core from them.
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

#[cfg(loom)]
mod weak {
    pub(in super::super) use loom::sync::atomic::{
        AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(in super::super) use loom::sync::{Mutex, MutexGuard};

    pub(in super::super) fn wait_a_little(_: u32) {
        loom::thread::yield_now();
    }

    pub(in super::super) fn wait_for_others(_: u32) {
        loom::thread::yield_now();
    }
}
