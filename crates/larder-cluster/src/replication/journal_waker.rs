//! The waker of a sender that waits for reads from flash. The sender waits at the notifier of its
//! journals.

use larder_store::journal::Notifier;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// Wakes the thread that waits at the journals' notifier, and records the wake.
#[derive(Debug)]
pub(crate) struct JournalWaker {
    notifier: Arc<Notifier>,
    was_woken: AtomicBool,
}

impl JournalWaker {
    pub(crate) fn new(notifier: &Arc<Notifier>) -> Self {
        Self { notifier: Arc::clone(notifier), was_woken: false.into() }
    }

    /// Returns whether the waker was called since this function was last called.
    pub(crate) fn take(&self) -> bool {
        self.was_woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for JournalWaker {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, Ordering::Release);
        self.notifier.notify();
    }
}
