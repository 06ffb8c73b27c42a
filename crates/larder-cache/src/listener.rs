//! Delivers evictions to the program's listener.
//!
//! The engine reports an eviction while it holds its locks, so the thread only adds the eviction to
//! its thread-local queue. After the operation has released the locks, the thread calls the
//! listener, which may use the cache.

use larder_store::Eviction;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

/// An item that the cache evicted to make room for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The key of the item.
    pub key: Box<[u8]>,
    /// The length of the value in bytes.
    pub value_len: usize,
    /// Whether the item has been read since it was stored.
    pub was_read: bool,
}

pub(crate) type Listener = Arc<dyn Fn(&Evicted) + Send + Sync>;

thread_local! {
    /// Evictions by this thread that are not delivered yet.
    static QUEUE: RefCell<VecDeque<(Listener, Evicted)>> = const { RefCell::new(VecDeque::new()) };
    /// Whether a call further up the stack is delivering the queue.
    static IS_DELIVERING: Cell<bool> = const { Cell::new(false) };
}

/// Queues an eviction.
pub(crate) fn note(listener: &Listener, eviction: &Eviction<'_>) {
    let evicted = Evicted {
        key: eviction.key.into(),
        value_len: eviction.value_len,
        was_read: eviction.fetched,
    };
    // While a thread exits, its queue may already be destroyed. In this case, the listener does not
    // receive the eviction.
    let _ = QUEUE.try_with(|queue| {
        queue.borrow_mut().push_back((Arc::clone(listener), evicted));
    });
}

/// Calls listeners for all evictions in the queue of this thread, including evictions by listeners.
/// Does nothing if a listener calls this function.
pub(crate) fn deliver() {
    if IS_DELIVERING.replace(true) {
        return;
    }
    let _ends = DeliveryGuard;
    while let Ok(Some((listener, evicted))) = QUEUE.try_with(|queue| queue.borrow_mut().pop_front())
    {
        listener(&evicted);
    }
}

/// Ends the delivery, even if a listener panics.
struct DeliveryGuard;

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        IS_DELIVERING.set(false);
    }
}
