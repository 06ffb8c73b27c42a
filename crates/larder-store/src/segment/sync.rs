//! Atomics and locks: the real ones, or loom's when its models run.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Lets another thread go on while this one waits for it.
pub(super) fn wait_a_little(round: u32) {
    #[cfg(loom)]
    {
        let _ = round;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if round < 64 {
        std::hint::spin_loop();
    } else {
        // The holder may have lost its core to us.
        std::thread::yield_now();
    }
}
