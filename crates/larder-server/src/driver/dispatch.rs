//! The connections that the accepting thread hands over to worker threads, under every driver, and the
//! intervals of work that no event starts.

use crate::connection::list::ConnectionInfo;
use crate::net::entry::Service;
use rustls::ServerConfig;
use socket2::Socket;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The interval of maintenance (expiry, growth of the index) on a thread without other work.
pub(super) const MAINTENANCE: Duration = Duration::from_secs(1);
/// How often watchers are shown what was logged.
pub(super) const LOG_INTERVAL: Duration = Duration::from_millis(20);

/// A connection on its way to a worker.
pub(super) struct Accepted {
    pub(super) stream: Socket,
    pub(super) info: Arc<ConnectionInfo>,
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) service: Service,
}

/// The threads of a driver, as the one that accepts connections sees them.
pub(super) trait Workers {
    /// Gives a connection to one of them, in turn.
    fn dispatch(&mut self, accepted: Accepted);

    /// Wakes all of them, so that they see the server's phase.
    fn wake_all(&self) -> io::Result<()>;

    /// Waits for them to end, once the server has ended.
    fn join(self);
}
