//! Admits and dismisses connections: enforces the `-c` limit, keeps the list of open connections,
//! and logs both events.

use crate::connection::list::ConnectionInfo;
use crate::process::life_cycle::Phase;
use crate::server::Server;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Server {
    /// Returns whether the accepting thread may accept another connection now. Always returns true
    /// with `-o maxconns_fast`: the server then accepts a connection beyond the limit, sends it an
    /// error and closes it. If this function returns false, the accepting thread can wait:
    /// [`Self::dismiss`] wakes it when a connection closes.
    pub(crate) fn accepts(&self) -> bool {
        let has_room = || self.connections.current.load(SeqCst) < self.options.conn_limit;
        self.options.suboptions.maxconns_fast || self.gate.passes(has_room)
    }

    /// Adds a connection to the list, counts it and logs it. If the limit of `-c` is reached,
    /// counts a rejection and returns `None`.
    pub fn admit(&self, peer: String, listener: &str) -> Option<Arc<ConnectionInfo>> {
        if self.connections.current.fetch_add(1, Relaxed) >= self.options.conn_limit {
            self.connections.current.fetch_sub(1, Relaxed);
            self.connections.rejected.fetch_add(1, Relaxed);
            return None;
        }
        self.connections.total.fetch_add(1, Relaxed);
        let id = self.connections.next_id();
        let now = self.clock.now().0;
        let info = Arc::new(ConnectionInfo::new(id, peer, listener.to_owned(), now));
        self.connections.open().insert(id, Arc::clone(&info));
        self.log.note_connection(&info.peer, id, None);
        tracing::debug!(id, peer = info.peer, "connection accepted");
        Some(info)
    }

    /// Removes a closed connection from the list, decrements the count, and logs why the connection
    /// closed. If the gate is closed, wakes the accepting thread.
    pub fn dismiss(&self, info: &ConnectionInfo) {
        self.connections.current.fetch_sub(1, SeqCst);
        if self.gate.is_closed() {
            self.life.wake();
        }
        self.connections.open().remove(&info.id);
        // Close the tracker's entry only after the removal, because another client can choose any
        // listed connection as the target of its messages.
        self.connections.tracker.close(info.id);
        self.note_shed_end(info);
        let reason = match info.ended() {
            Some(reason) => reason,
            None if self.life.phase() > Phase::Serving => "shutdown",
            None => "normal",
        };
        self.log.note_connection(&info.peer, info.id, Some(reason));
        tracing::debug!(info.id, peer = info.peer, reason, "connection closed");
    }
}
