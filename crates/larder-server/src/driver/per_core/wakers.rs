//! The wakers of a worker and of its clients.

use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

/// Wakes a worker to check its clients.
pub(super) struct LoopWaker(pub(super) Arc<Waker>);

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        if let Err(error) = self.0.wake() {
            tracing::error!(%error, "a worker thread cannot be woken: its event queue refuses the signal");
        }
    }
}

/// Clients and UDP sockets of one worker whose requests can be continued.
pub(super) struct Resumed {
    /// Their tokens and the numbers of their connections, because a token may have been assigned anew.
    pub(super) list: Mutex<Vec<(usize, u64)>>,
    pub(super) waker: Arc<Waker>,
    /// The worker will look at the list before it waits for events, so that it need not be woken.
    pub(super) looks_again: AtomicBool,
}

impl Resumed {
    pub(super) fn take(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// What wakes the client or UDP socket of this token.
    pub(super) fn waker_of(self: &Arc<Self>, token: usize, id: u64) -> std::task::Waker {
        Arc::new(ClientWaker { resumed: Arc::clone(self), token, id }).into()
    }
}

/// Wakes one client or UDP socket, from any thread.
struct ClientWaker {
    resumed: Arc<Resumed>,
    token: usize,
    id: u64,
}

impl Wake for ClientWaker {
    fn wake(self: Arc<Self>) {
        let Self { resumed, token, id } = &*self;
        resumed.list.lock().unwrap_or_else(PoisonError::into_inner).push((*token, *id));
        if resumed.looks_again.load(Ordering::SeqCst) {
            return;
        }
        if let Err(error) = resumed.waker.wake() {
            tracing::error!(%error, "a worker thread cannot be woken: its event queue refuses the signal");
        }
    }
}
