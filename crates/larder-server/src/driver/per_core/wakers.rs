//! Wakers for a worker and its clients.

use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

/// The waker of a worker, for load shedding. The woken worker closes its marked clients.
pub(super) struct LoopWaker(pub(super) Arc<Waker>);

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        if let Err(error) = self.0.wake() {
            tracing::error!(%error, "waking a worker thread failed: stalled connections close late; restart the server if this repeats");
        }
    }
}

/// The clients and UDP sockets of one worker whose waiting requests can resume.
pub(super) struct Resumed {
    /// The token and the connection ID of each client or UDP socket. If the token's current
    /// connection has another ID, the token was reused.
    pub(super) list: Mutex<Vec<(usize, u64)>>,
    pub(super) waker: Arc<Waker>,
    /// Whether the worker will check the list before it next waits for events, so that wakers need
    /// not wake the worker.
    pub(super) looks_again: AtomicBool,
}

impl Resumed {
    pub(super) fn take(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Creates the waker of the client or UDP socket with this token. `id` is the connection's ID;
    /// 0 for a UDP socket.
    pub(super) fn waker_of(self: &Arc<Self>, token: usize, id: u64) -> std::task::Waker {
        Arc::new(ClientWaker { resumed: Arc::clone(self), token, id }).into()
    }
}

/// The waker of one client or UDP socket, callable from any thread.
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
            tracing::error!(%error, "waking a worker thread failed: a request waits for the next event; restart the server if this repeats");
        }
    }
}
