//! The state shared by all tasks of the Tokio runtimes, and each thread's worker context.

use crate::driver::worker::WorkerContext;
use crate::process::platform;
use crate::server::Server;
use larder_store::cache::Cache;
use larder_store::erased;
use std::cell::RefCell;
use std::sync::Arc;
use tokio::sync::Notify;

thread_local! {
    /// The [`WorkerContext`] of this thread; `None` if it is not a worker.
    static WORKER: RefCell<Option<WorkerContext<erased::Handle>>> = const { RefCell::new(None) };
}

/// The shared state of the tasks.
pub(super) struct Shared {
    pub(super) server: Arc<Server>,
    /// The signal that wakes every connection to check the server's phase.
    pub(super) phase_changed: Notify,
}

impl Shared {
    pub(super) fn new(server: &Arc<Server>) -> Arc<Self> {
        let phase_changed = Notify::new();
        Arc::new(Self { server: Arc::clone(server), phase_changed })
    }

    /// Calls `work` with the worker context of this thread.
    pub(super) fn with_worker<R>(
        &self,
        work: impl FnOnce(&mut WorkerContext<erased::Handle>) -> R,
    ) -> R {
        WORKER.with_borrow_mut(|worker| {
            work(
                worker
                    .as_mut()
                    .expect("tasks run only on worker threads, and install() ran on each of them"),
            )
        })
    }

    /// Runs one slice of maintenance. Returns true if work is left.
    pub(super) fn maintain(&self) -> bool {
        self.with_worker(|worker| worker.maintain(worker.now().seconds()))
    }
}

/// Makes this thread the worker with this index: creates its worker context and, with `--pin`, pins
/// it to a core.
pub(super) fn install(index: usize, server: &Arc<Server>, cache: &erased::Cache) {
    if server.options.pin {
        platform::pin_to_core(index);
    }
    let worker = WorkerContext::new(index, Arc::clone(server), cache.engine());
    WORKER.set(Some(worker));
}

/// Drops the worker context of this thread. The context contains the engine handle, which must be
/// dropped before the thread exits and the engine's thread-local state is destroyed.
pub(super) fn uninstall() {
    WORKER.take();
}
