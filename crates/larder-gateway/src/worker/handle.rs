//! The handle of the gateway's thread to the cache. It is made for a request and dropped about a second
//! after the last one, so that an unused gateway holds no memory of the cache and is never woken.

use crate::server_view::ServerView;
use larder_store::Maintenance;
use larder_store::erased;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// A handle that was not used for so long is dropped.
const IDLE: Duration = Duration::from_secs(1);

thread_local! {
    /// The [`Worker`] of the gateway's thread, while there is one.
    pub(super) static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

pub(super) struct Worker {
    pub(super) engine: erased::Handle,
    /// When it was last used.
    pub(super) used: Instant,
}

/// Maintains the handle of this thread once a second, and drops it when it is idle.
pub(super) async fn maintain_handle(view: Arc<dyn ServerView>, active: Arc<AtomicUsize>) {
    loop {
        sleep(IDLE).await;
        let is_dropped = WORKER.with_borrow_mut(|place| {
            let Some(worker) = place.as_mut() else { return true };
            if active.load(Ordering::Relaxed) == 0 && worker.used.elapsed() >= IDLE {
                *place = None;
                return true;
            }
            worker.engine.maintain(view.now().secs);
            false
        });
        if is_dropped {
            return;
        }
    }
}

/// Drops the handle of this thread, which must not outlive what its engine keeps for the thread.
pub(crate) fn drop_handle() {
    WORKER.take();
}
