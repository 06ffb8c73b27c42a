//! A waker for requests that wait for slower storage or another node, and for replies that wait for
//! an acknowledgement. Other events also wake the task, so this waker sets a flag. The task checks
//! the flag to detect that the wait is over.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};

/// A flag that its wakers set before they wake the task.
pub(super) struct ResumeFlag(Arc<FlagWaker>);

struct FlagWaker {
    is_woken: AtomicBool,
    task: Waker,
}

impl ResumeFlag {
    pub(super) fn new(task: &Waker) -> Self {
        Self(Arc::new(FlagWaker { is_woken: AtomicBool::new(false), task: task.clone() }))
    }

    /// Creates a waker that sets the flag and wakes the task.
    pub(super) fn waker(&self) -> Waker {
        Arc::clone(&self.0).into()
    }

    /// Waits until a waker has set the flag, then clears the flag. Only the task that was passed to
    /// [`Self::new`] may call this, because the wakers wake no other task.
    pub(super) async fn woken(&self) {
        poll_fn(|_| if self.take_wake() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Clears the flag. Returns true if it was set.
    pub(super) fn take_wake(&self) -> bool {
        self.0.is_woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for FlagWaker {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}
