//! Atomics, locks and epochs, and waiting for them. Model checks (`--cfg shuttle`) replace them all,
//! so that a scheduler may come in between any two steps.

#[cfg(shuttle)]
mod modelled;

#[cfg(shuttle)]
pub(super) use modelled::{
    AtomicU32, AtomicU64, AtomicUsize, Guard, Mutex, MutexGuard, Ordering, fence, pin,
    wait_a_little,
};

#[cfg(not(shuttle))]
pub(super) use real::{
    AtomicU32, AtomicU64, AtomicUsize, Guard, Mutex, MutexGuard, Ordering, fence, pin,
    wait_a_little,
};

#[cfg(not(shuttle))]
mod real {
    pub(in super::super) use crossbeam_epoch::{Guard, pin};
    pub(in super::super) use std::sync::atomic::{
        AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(in super::super) use std::sync::{Mutex, MutexGuard};

    /// Lets another thread go on while this one waits for it.
    pub(in super::super) fn wait_a_little(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            // The holder may have lost its core to us.
            std::thread::yield_now();
        }
    }
}
