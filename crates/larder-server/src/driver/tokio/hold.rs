//! Waking a task whose request waits for slower storage. Tasks are woken for other reasons too, so
//! these wakers also set a flag.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};

/// A task's side of the wakers that it has handed out. They all wake the same task.
pub(super) struct Hold(Arc<Note>);

struct Note {
    is_woken: AtomicBool,
    task: Waker,
}

impl Hold {
    pub(super) fn new(task: &Waker) -> Self {
        Self(Arc::new(Note { is_woken: AtomicBool::new(false), task: task.clone() }))
    }

    /// A waker to hand out.
    pub(super) fn waker(&self) -> Waker {
        Arc::clone(&self.0).into()
    }

    /// Waits until a waker is called.
    pub(super) async fn woken(&self) {
        poll_fn(|_| if self.take_wake() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Whether a waker was called since this was last asked.
    pub(super) fn take_wake(&self) -> bool {
        self.0.is_woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}
