//! A waker for a sender that waits at its journals for slower storage.

use larder_store::journal::Bell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// Notifies a thread that waits at the notifier of the journals, and remembers that it was woken.
#[derive(Debug)]
pub(crate) struct JournalWaker {
    notifier: Arc<Bell>,
    was_woken: AtomicBool,
}

impl JournalWaker {
    pub(crate) fn new(notifier: &Arc<Bell>) -> Self {
        Self { notifier: Arc::clone(notifier), was_woken: false.into() }
    }

    /// Whether it was woken since the last call.
    pub(crate) fn take(&self) -> bool {
        self.was_woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for JournalWaker {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, Ordering::Release);
        self.notifier.ring();
    }
}
