//! Atomics, and waiting for them.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Lets another thread go on while this one waits for it.
pub(super) fn wait_a_little(round: u32) {
    if round < 64 {
        std::hint::spin_loop();
    } else {
        // The holder may have lost its core to us.
        std::thread::yield_now();
    }
}
