//! Defers the wakes of message receivers to the end of a batch of requests. Each connection then
//! wakes once per batch, and one message can contain all changed keys with the same prefix.

use std::cell::{Cell, RefCell};
use std::task::Waker;

thread_local! {
    static DEFERRAL: Cell<Deferral> = const { Cell::new(Deferral::Off) };
    static WAKERS: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Deferral {
    Off,
    /// Wakes are deferred, and `WAKERS` is empty.
    Empty,
    /// Wakes are deferred, and `WAKERS` contains wakers.
    Filled,
}

/// A guard that defers the wakes of message receivers on this thread. Dropping the guard wakes
/// them.
#[derive(Debug)]
pub struct DeferredWakes(());

impl DeferredWakes {
    /// Starts to defer the wakes of this thread. Deferrals are not nested.
    #[must_use]
    #[inline]
    pub fn begin() -> Self {
        DEFERRAL.set(Deferral::Empty);
        Self(())
    }
}

impl Drop for DeferredWakes {
    #[inline]
    fn drop(&mut self) {
        if DEFERRAL.replace(Deferral::Off) == Deferral::Filled {
            wake_all();
        }
    }
}

#[cold]
fn wake_all() {
    WAKERS.take().into_iter().for_each(Waker::wake);
}

/// Wakes the receiver of a message. If a [`DeferredWakes`] exists on this thread, wakes the
/// receiver when that guard is dropped.
pub(super) fn wake(waker: Waker) {
    if DEFERRAL.get() == Deferral::Off {
        waker.wake();
    } else {
        DEFERRAL.set(Deferral::Filled);
        WAKERS.with_borrow_mut(|wakers| wakers.push(waker));
    }
}
