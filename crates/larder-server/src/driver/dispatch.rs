//! The interface between the accepting thread and the worker threads of a driver, and the intervals
//! of periodic work.

use crate::connection::list::ConnectionInfo;
use crate::net::entry::Service;
use rustls::ServerConfig;
use socket2::Socket;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The interval at which each thread checks timeouts and starts maintenance: it removes expired
/// items and enforces a lowered memory limit.
pub(super) const MAINTENANCE: Duration = Duration::from_secs(1);
/// The interval at which watchers receive new log lines. Also the interval at which a graceful
/// shutdown checks whether connections are still open.
pub(super) const LOG_INTERVAL: Duration = Duration::from_millis(20);

/// An accepted connection for a worker.
pub(super) struct Accepted {
    pub(super) stream: Socket,
    pub(super) info: Arc<ConnectionInfo>,
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) service: Service,
}

/// The worker threads of a driver.
pub(super) trait Workers {
    /// Passes a connection to the next worker or runtime, round-robin.
    fn dispatch(&mut self, accepted: Accepted);

    /// Wakes all workers, so that they check the server's phase.
    fn wake_all(&self) -> io::Result<()>;

    /// Waits for all workers to stop. The caller must have entered the phase
    /// [`Phase::Ended`](crate::process::life_cycle::Phase::Ended).
    fn join(self);
}
