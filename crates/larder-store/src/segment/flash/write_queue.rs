//! The queue of write buffers that are waiting to be written.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The queue between the handles that fill write buffers and the threads that write them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The write buffers, each with the number of segments in the chain of its large item.
    waiting: VecDeque<(u32, usize)>,
    /// The number of write buffers that threads have taken but not finished yet.
    under_way: usize,
    /// The total number of segments in the chains of large items that wait to be written or are
    /// being written.
    large: usize,
    is_stopping: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock, so the lock is never poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of write buffers that are not written yet.
    pub(crate) fn len(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.under_way
    }

    /// Returns the total number of segments in the chains of large items that are not written yet.
    pub(crate) fn large(&self) -> usize {
        self.state().large
    }

    /// Queues a write buffer. `chained` is the number of segments in the chain of its large item.
    pub(crate) fn push(&self, segment: u32, chained: usize) {
        let mut state = self.state();
        state.waiting.push_back((segment, chained));
        state.large += chained;
        drop(state);
        self.changed.notify_all();
    }

    /// Takes the next write buffer, and waits for one if necessary. Returns `None` if the queue is
    /// stopped.
    pub(crate) fn next(&self) -> Option<(u32, usize)> {
        let mut state = self.state();
        loop {
            if state.is_stopping {
                return None;
            }
            if let Some(next) = state.waiting.pop_front() {
                state.under_way += 1;
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the next write buffer, or returns `None` if the queue is empty.
    #[cfg(all(test, not(any(loom, shuttle, miri))))]
    pub(crate) fn try_next(&self) -> Option<(u32, usize)> {
        let mut state = self.state();
        let next = state.waiting.pop_front()?;
        state.under_way += 1;
        Some(next)
    }

    /// Records that a thread has finished a write buffer. `chained` is the number of segments in
    /// the chain of its large item.
    pub(crate) fn finish(&self, chained: usize) {
        let mut state = self.state();
        state.under_way -= 1;
        state.large -= chained;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits up to `at_most` for a change of the queue. Returns false if the queue is stopped.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let state = self.state();
        if state.is_stopping {
            return false;
        }
        let (state, _) =
            self.changed.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner);
        !state.is_stopping
    }

    /// Wakes the threads that wait for a change of the queue.
    pub(crate) fn notify(&self) {
        drop(self.state());
        self.changed.notify_all();
    }

    pub(crate) fn set_stopping(&self, is_stopping: bool) {
        self.state().is_stopping = is_stopping;
        self.changed.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }
}
