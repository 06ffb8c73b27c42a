//! The cache handle of the gateway's thread. A request creates the handle if it does not exist. The
//! handle is dropped one to two seconds after the last request, so that an unused gateway holds no
//! cache memory and its thread never wakes up.

use crate::server_view::ServerView;
use larder_store::Maintenance;
use larder_store::erased;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The interval of the handle's maintenance. Maintenance drops a handle that no request has used
/// for this time.
const IDLE: Duration = Duration::from_secs(1);

thread_local! {
    /// The [`Worker`] of the gateway's thread; `None` while the thread has no handle.
    pub(super) static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

pub(super) struct Worker {
    pub(super) engine: erased::Handle,
    /// The time of the last use.
    pub(super) used: Instant,
}

/// Runs maintenance on this thread's handle once a second. When no request is active, and no
/// request has used the handle for [`IDLE`], drops the handle and returns.
pub(super) async fn maintain_handle(view: Arc<dyn ServerView>, active: Arc<AtomicUsize>) {
    loop {
        sleep(IDLE).await;
        let is_dropped = WORKER.with_borrow_mut(|slot| {
            let Some(worker) = slot.as_mut() else { return true };
            if active.load(Ordering::Relaxed) == 0 && worker.used.elapsed() >= IDLE {
                *slot = None;
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

/// Drops the handle of this thread. The handle must not outlive the engine's thread-local state.
pub(crate) fn drop_handle() {
    WORKER.take();
}
