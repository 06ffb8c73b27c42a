//! Atomics, locks and epochs, and waiting for them. Model checks (`--cfg shuttle`) replace them all,
//! so that a scheduler may come in between any two steps.

#[cfg(shuttle)]
mod modelled;

#[cfg(shuttle)]
pub(super) use modelled::{
    AtomicU32, AtomicU64, AtomicUsize, Guard, Mutex, MutexGuard, Ordering, fence, park, pin,
    wait_a_little, wake,
};

#[cfg(not(shuttle))]
pub(super) use real::{
    AtomicU32, AtomicU64, AtomicUsize, Guard, Mutex, MutexGuard, Ordering, fence, park, pin,
    wait_a_little, wake,
};

#[cfg(not(shuttle))]
mod real {
    pub(in super::super) use crossbeam_epoch::{Guard, pin};
    use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN};
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
    /// Sleeps until somebody calls [`wake`] for `word`, unless it is no longer `seen`. May return
    /// early.
    pub(in super::super) fn park(word: &AtomicU32, seen: u32) {
        let unchanged = || word.load(Ordering::Relaxed) == seen;
        let key = std::ptr::from_ref(word).addr();
        // SAFETY: the key is the address of memory that we have borrowed, which nobody else parks
        // at; the closures neither panic nor park.
        unsafe {
            parking_lot_core::park(key, unchanged, || (), |_, _| (), DEFAULT_PARK_TOKEN, None);
        }
    }

    /// Wakes all that sleep at `word`.
    #[cold]
    pub(in super::super) fn wake(word: &AtomicU32) {
        let key = std::ptr::from_ref(word).addr();
        // SAFETY: as in `park`.
        unsafe { parking_lot_core::unpark_all(key, DEFAULT_UNPARK_TOKEN) };
    }
}
