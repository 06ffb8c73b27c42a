//! What the tasks of Tokio's runtimes share, and the worker context of each of their threads.

use crate::driver::worker::WorkerContext;
use crate::process::platform;
use crate::server::Server;
use larder_store::cache::Cache;
use larder_store::erased;
use std::cell::RefCell;
use std::sync::Arc;
use tokio::sync::Notify;

thread_local! {
    /// The [`WorkerContext`] of this thread, if it is a worker.
    static WORKER: RefCell<Option<WorkerContext<erased::Handle>>> = const { RefCell::new(None) };
}

/// What tasks share.
pub(super) struct Shared {
    pub(super) server: Arc<Server>,
    /// Wakes every connection, to see the phase.
    pub(super) phase_changed: Notify,
}

impl Shared {
    pub(super) fn new(server: &Arc<Server>) -> Arc<Self> {
        let phase_changed = Notify::new();
        Arc::new(Self { server: Arc::clone(server), phase_changed })
    }

    /// Works with this thread's worker context.
    pub(super) fn with_worker<R>(
        &self,
        work: impl FnOnce(&mut WorkerContext<erased::Handle>) -> R,
    ) -> R {
        WORKER.with_borrow_mut(|place| {
            work(
                place
                    .as_mut()
                    .expect("a task runs on a worker thread, which has its context installed"),
            )
        })
    }

    /// A slice of maintenance; true if there is more to do.
    pub(super) fn maintain(&self) -> bool {
        self.with_worker(|worker| worker.maintain(worker.now().seconds()))
    }
}

/// Makes this thread the worker of number `index`.
pub(super) fn install(index: usize, server: &Arc<Server>, cache: &erased::Cache) {
    if server.options.pin {
        platform::pin_to_core(index);
    }
    let worker = WorkerContext::new(index, Arc::clone(server), cache.engine());
    WORKER.set(Some(worker));
}

/// A worker's end: its engine must not outlive what the engine itself keeps for the thread.
pub(super) fn uninstall() {
    WORKER.take();
}
