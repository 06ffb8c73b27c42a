//! The replaceable list of a client's servers.

use crate::core::servers::{ServerHandle, Servers};
use crate::metrics::{ClientRecorder, Metrics};
use crate::refresh::RefreshSignal;
use arc_swap::ArcSwap;
use std::sync::{Arc, Mutex, PoisonError};

/// The servers of a client. A call uses the same list from start to end, even if the list is
/// replaced.
#[derive(Debug)]
pub(crate) struct ServerSet<S> {
    current: ArcSwap<Servers<S>>,
    is_closed: Mutex<bool>,
    refresh: Arc<RefreshSignal>,
    pub(crate) recorder: ClientRecorder,
}

impl<S: ServerHandle> ServerSet<S> {
    pub(crate) fn new(servers: Servers<S>, refresh: Arc<RefreshSignal>) -> Self {
        let (current, is_closed) = (ArcSwap::from_pointee(servers), Mutex::new(false));
        Self { current, is_closed, refresh, recorder: ClientRecorder::default() }
    }

    /// Returns the current list.
    pub(crate) fn servers(&self) -> Arc<Servers<S>> {
        self.current.load_full()
    }

    /// Replaces the list. Does nothing if the client is closed.
    pub(crate) fn replace(&self, servers: Servers<S>) {
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_closed {
            self.recorder.list_replaced(servers.list.iter().map(|server| &**server.name()));
            self.current.store(Arc::new(servers));
        }
    }

    /// Closes all servers and stops discovery.
    pub(crate) fn close(&self) {
        let mut is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        *is_closed = true;
        self.servers().list.iter().for_each(|server| server.close());
        self.refresh.stop();
    }

    /// Returns the sums of [`ServerHandle::connections`] over the servers.
    pub(crate) fn connections(&self) -> (usize, usize, usize) {
        let servers = self.servers();
        let counts = servers.list.iter().map(|server| server.connections());
        counts.fold((0, 0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1, sum.2 + count.2))
    }

    /// Returns a snapshot of the metrics.
    pub(crate) fn metrics(&self) -> Metrics {
        let snapshot = |server: &Arc<S>| server.recorder().snapshot(server.connections());
        Metrics {
            servers: self.servers().list.iter().map(snapshot).collect(),
            computing: self.recorder.computing(),
            lists_replaced: self.recorder.lists_replaced(),
        }
    }
}

impl<S> Drop for ServerSet<S> {
    fn drop(&mut self) {
        self.refresh.stop();
    }
}
