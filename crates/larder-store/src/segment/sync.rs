//! Atomics and locks, and waiting for them. Model checks replace them all: `--cfg shuttle` so that a
//! scheduler may come in between any two steps, `--cfg loom` so that each load may also return any
//! older value that its ordering allows.

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

    /// Lets another thread go on while this one waits for its lock.
    pub(in super::super) fn wait_a_little(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            // The holder may have lost its core to this thread.
            std::thread::yield_now();
        }
    }

    /// Lets other threads go on that have to finish a batch: yields, then sleeps.
    #[expect(clippy::disallowed_methods, reason = "a bounded number of times, for other threads")]
    pub(in super::super) fn wait_for_others(round: u32) {
        if round < 32 {
            std::thread::yield_now();
        } else {
            // Where there are more threads than cores, yielding takes the core from them.
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
