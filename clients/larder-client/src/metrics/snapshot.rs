//! The public snapshot of the metrics.

use super::command::Command;
use super::histogram::Histogram;
use super::reason::CloseReason;
use std::sync::Arc;

/// The metrics of a client: see [the module](crate::metrics).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// The servers in the current list. If a server returns to the list, its counters restart at
    /// zero.
    pub servers: Vec<ServerMetrics>,
    /// The outcomes of `get_or_compute`.
    pub computing: ComputingMetrics,
    /// The number of times that [discovery](crate::Builder::discovery) has replaced the list of
    /// servers.
    pub lists_replaced: u64,
}

/// The metrics of one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerMetrics {
    /// The address, as configured or discovered.
    pub server: Arc<str>,
    /// Open connections. A pool also counts connections that are being opened.
    pub open: usize,
    /// Open connections without a call.
    pub idle: usize,
    /// Calls that wait for a pooled connection. The number is always 0 with shared connections.
    pub waiting: usize,
    /// The number of times that a connection was opened. Failures to open a connection count as
    /// errors, mostly `connect` or `login`.
    pub opened: u64,
    /// The times for which calls waited because all connections were in use, including waits that
    /// ended without a connection. Waits for a connection to open do not count.
    pub waits: Histogram,
    /// Sent requests on shared connections whose callers gave up: the deadline passed, a waiter
    /// interrupted the call, or the future was dropped. The reply was dropped or never arrived. (In
    /// a pool, such a call closes its connection.)
    pub abandoned: u64,
    /// Lookups that returned no item because of a server fault
    /// ([`degrade`](crate::Builder::degrade)). They also count as errors.
    pub degraded: u64,
    /// Whether the breaker is open, or a probe is under way.
    pub breaker_is_open: bool,
    /// The number of times that the breaker opened.
    pub breaker_opened: u64,
    pub(super) calls: Box<[Histogram]>,
    pub(super) errors: Box<[(&'static str, u64)]>,
    pub(super) closed: Box<[u64]>,
}

/// The outcomes of `get_or_compute` calls, summed over all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputingMetrics {
    /// Lookups that won the lease. Their callers compute the value.
    pub won: u64,
    /// Callers that polled for the lease until they got the lease, a value existed, or the timeout
    /// of a call had passed. A caller polls for three reasons: another client has the lease and
    /// there is no old value, the value is unreadable, or the computation of another caller failed.
    pub waited: u64,
    /// Lookups that found an old value while another caller had the lease.
    pub stale: u64,
    /// Callers that got the value computed by another caller of this client.
    pub coalesced: u64,
    /// Computations that returned a value.
    pub computed: u64,
    /// Computations that returned an error.
    pub failed: u64,
}

impl Metrics {
    /// Returns the durations of calls to all servers in one histogram: see
    /// [`ServerMetrics::latency`].
    #[must_use]
    pub fn latency(&self, command: Command) -> Histogram {
        let mut sum = Histogram::default();
        let servers = self.servers.iter().filter_map(|server| server.calls.get(command as usize));
        servers.for_each(|histogram| sum += histogram);
        sum
    }
}

impl ServerMetrics {
    /// Returns the durations of calls. A duration includes the wait for a connection, and ends when
    /// the reply is read or the call fails. Calls that the breaker refused count as errors only.
    /// Calls whose futures were dropped do not count.
    #[must_use]
    pub fn latency(&self, command: Command) -> Histogram {
        self.calls.get(command as usize).cloned().unwrap_or_default()
    }

    /// Returns the number of connections that were closed for this reason.
    #[must_use]
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.closed.get(reason as usize).copied().unwrap_or_default()
    }

    /// Iterates over the [names](crate::ErrorKind::name) of error kinds, with the number of calls
    /// that failed with each kind. Includes kinds that did not occur.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.errors.iter().copied()
    }
}
