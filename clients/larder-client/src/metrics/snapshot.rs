//! What a program gets.

use super::command::Command;
use super::histogram::Histogram;
use super::reason::CloseReason;
use std::sync::Arc;

/// What a client has done: see [the module](crate::metrics).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Each server that is in the list at present. One that leaves the list and comes back begins anew.
    pub servers: Vec<ServerMetrics>,
    /// The calls of `get_or_compute`.
    pub computing: ComputingMetrics,
    /// How often [discovery](crate::Builder::discovery) has replaced the list of servers.
    pub lists_replaced: u64,
}

/// What a client has done with one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerMetrics {
    /// Its address, as it was given or found.
    pub server: Arc<str>,
    /// Connections that are open, or being opened.
    pub open: usize,
    /// Those of them that no call uses.
    pub idle: usize,
    /// Calls that wait for a connection of a pool at present.
    pub waiting: usize,
    /// Connections that were opened. Those that could not be opened are errors: `connect` or `login`.
    pub opened: u64,
    /// How long calls waited for a connection, because all were in use; of those that had to, also in vain.
    pub waits: Histogram,
    /// Replies on shared connections that nobody got, because the caller had given up after its request was sent: its
    /// deadline was over, or the future was dropped. (In a pool that closes the connection.)
    pub abandoned: u64,
    /// Look-ups that found nothing because the server was at fault ([`degrade`](crate::Builder::degrade)). They are among
    /// the errors, too.
    pub degraded: u64,
    /// Whether the server is left alone after many faults, or a call finds out whether it is back.
    pub breaker_is_open: bool,
    /// How often that began.
    pub breaker_opened: u64,
    pub(super) calls: Box<[Histogram]>,
    pub(super) errors: Box<[(&'static str, u64)]>,
    pub(super) closed: Box<[u64]>,
}

/// What became of calls of `get_or_compute`, for all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputingMetrics {
    /// Leases that a server gave: the caller computes the value.
    pub won: u64,
    /// Callers that waited because a caller of another process had the lease, and there was no value meanwhile.
    pub waited: u64,
    /// Callers that got an old value, because another one had the lease.
    pub stale: u64,
    /// Callers that got the value that another caller of this process computed meanwhile.
    pub coalesced: u64,
    /// Computations that returned a value.
    pub computed: u64,
    /// Computations that returned an error.
    pub failed: u64,
}

impl Metrics {
    /// How long calls took, of all servers together: see [`ServerMetrics::latency`].
    #[must_use]
    pub fn latency(&self, command: Command) -> Histogram {
        let mut sum = Histogram::default();
        let servers = self.servers.iter().filter_map(|server| server.calls.get(command as usize));
        servers.for_each(|histogram| sum += histogram);
        sum
    }
}

impl ServerMetrics {
    /// How long calls took, from their begin, the wait for a connection included, until their reply was read or they
    /// failed. Calls that were refused because the breaker was open are only among the errors, and calls whose futures
    /// were dropped are left out.
    #[must_use]
    pub fn latency(&self, command: Command) -> Histogram {
        self.calls.get(command as usize).cloned().unwrap_or_default()
    }

    /// Connections that were closed, by the reason.
    #[must_use]
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.closed.get(reason as usize).copied().unwrap_or_default()
    }

    /// Calls that failed, by the [name](crate::ErrorKind::name) of the error's kind. All kinds are there.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.errors.iter().copied()
    }
}
