//! What the thread that accepts connections hands over to worker threads, under every driver, and how
//! often they do what no event asks for.

use crate::connections::ConnectionInfo;
use crate::listener::Service;
use rustls::ServerConfig;
use socket2::Socket;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often expiry and growth get a slice of time when nothing else happens.
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
    fn hand_over(&mut self, accepted: Accepted);

    /// Has all of them see the phase that the server is in.
    fn wake_all(&self) -> io::Result<()>;

    /// Waits for them to end, for the server has.
    fn join(self);
}
