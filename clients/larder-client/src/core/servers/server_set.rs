//! The servers of a client, whose list may be replaced.

use crate::core::servers::{Member, Servers};
use crate::metrics::{ClientRecorder, Metrics};
use crate::refresh::RefreshSignal;
use arc_swap::ArcSwap;
use std::sync::{Arc, Mutex, PoisonError};

/// The servers of a client. Calls go on with the list with which they began.
#[derive(Debug)]
pub(crate) struct Group<S> {
    current: ArcSwap<Servers<S>>,
    is_closed: Mutex<bool>,
    refresh: Arc<RefreshSignal>,
    pub(crate) recorder: ClientRecorder,
}

impl<S: Member> Group<S> {
    pub(crate) fn new(servers: Servers<S>, refresh: Arc<RefreshSignal>) -> Self {
        let (current, is_closed) = (ArcSwap::from_pointee(servers), Mutex::new(false));
        Self { current, is_closed, refresh, recorder: ClientRecorder::default() }
    }

    /// The present list.
    pub(crate) fn servers(&self) -> Arc<Servers<S>> {
        self.current.load_full()
    }

    /// Replaces the list, unless the client is closed.
    pub(crate) fn replace(&self, servers: Servers<S>) {
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_closed {
            self.recorder.list_replaced(servers.list.iter().map(|server| &**server.name()));
            self.current.store(Arc::new(servers));
        }
    }

    /// Closes all servers for good.
    pub(crate) fn close(&self) {
        let mut is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        *is_closed = true;
        self.servers().list.iter().for_each(|server| server.close());
        self.refresh.stop();
    }

    /// Connections that are open or being opened, those that are idle, and the calls that wait for one.
    pub(crate) fn connections(&self) -> (usize, usize, usize) {
        let servers = self.servers();
        let counts = servers.list.iter().map(|server| server.connections());
        counts.fold((0, 0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1, sum.2 + count.2))
    }

    /// What was counted, and what there is at present.
    pub(crate) fn metrics(&self) -> Metrics {
        let snapshot = |server: &Arc<S>| server.recorder().snapshot(server.connections());
        Metrics {
            servers: self.servers().list.iter().map(snapshot).collect(),
            computing: self.recorder.computing(),
            lists_replaced: self.recorder.lists_replaced(),
        }
    }
}

impl<S> Drop for Group<S> {
    fn drop(&mut self) {
        self.refresh.stop();
    }
}
