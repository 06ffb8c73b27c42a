//! Recorders for servers and for the client. A recorder counts events, reports the counts (feature
//! `metrics`) and traces the events (feature `tracing`).

use super::command::Command;
use super::facade;
use super::number::{Counter, Timer};
use super::reason::CloseReason;
use super::snapshot::{ComputingMetrics, ServerMetrics};
use crate::core::lease::LeaseAnswer;
use crate::error::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The names and descriptions of the metrics.
const NAMES: [(&str, &str); 14] = [
    (CALLS, "Duration of calls, until the reply was read or the call failed, by command."),
    (ERRORS, "Failed calls, by kind of error."),
    (DEGRADED, "Lookups that returned no item because of a server fault."),
    (WAITS, "Waits of calls for a connection."),
    (OPEN, "Open connections."),
    (OPENED, "Opened connections."),
    (CLOSED, "Closed connections, by reason."),
    (ABANDONED, "Replies on shared connections whose callers had given up."),
    (BREAKERS, "Open breakers: servers that are unavailable after many faults."),
    (BREAKERS_OPENED, "Openings of breakers."),
    (LEASES, "Leases of get_or_compute, by outcome: won, waited or stale."),
    (COALESCED, "Calls of get_or_compute that got the result of another call of the process."),
    (COMPUTED, "Computations of get_or_compute, by outcome: computed or failed."),
    (LISTS, "Replacements of the server list."),
];
const CALLS: &str = "larder_client_call_duration_seconds";
const ERRORS: &str = "larder_client_errors_total";
const DEGRADED: &str = "larder_client_degraded_total";
const WAITS: &str = "larder_client_wait_duration_seconds";
const OPEN: &str = "larder_client_connections";
const OPENED: &str = "larder_client_connections_opened_total";
const CLOSED: &str = "larder_client_connections_closed_total";
const ABANDONED: &str = "larder_client_abandoned_total";
const BREAKERS: &str = "larder_client_open_breakers";
const BREAKERS_OPENED: &str = "larder_client_breakers_opened_total";
const LEASES: &str = "larder_client_leases_total";
const COALESCED: &str = "larder_client_coalesced_total";
const COMPUTED: &str = "larder_client_computations_total";
const LISTS: &str = "larder_client_lists_replaced_total";

/// The target of traced events.
#[cfg(feature = "tracing")]
const TARGET: &str = "larder_client";

/// The metrics of a server.
#[derive(Debug)]
pub(crate) struct ServerRecorder {
    server: Arc<str>,
    /// One timer per group of commands. A timer is created on its first use, because most programs
    /// use few commands.
    calls: [OnceLock<Box<Timer>>; Command::ALL.len()],
    errors: [Counter; ErrorKind::NAMES.len()],
    degraded: Counter,
    waits: Timer,
    open: facade::Gauge,
    opened: Counter,
    closed: [Counter; CloseReason::ALL.len()],
    abandoned: Counter,
    breaker_is_open: AtomicBool,
    open_breakers: facade::Gauge,
    breaker_opened: Counter,
}

impl ServerRecorder {
    pub(crate) fn new(server: &str) -> Self {
        let labels = &[("server", server)];
        let counter = |name| Counter::new(name, labels);
        let by = |name, label, value| Counter::new(name, &[("server", server), (label, value)]);
        Self {
            server: server.into(),
            calls: Default::default(),
            errors: ErrorKind::NAMES.map(|kind| by(ERRORS, "error", kind)),
            degraded: counter(DEGRADED),
            waits: Timer::new(WAITS, labels),
            open: facade::gauge(OPEN, labels),
            opened: counter(OPENED),
            closed: CloseReason::ALL.map(|reason| by(CLOSED, "reason", reason.name())),
            abandoned: counter(ABANDONED),
            breaker_is_open: AtomicBool::new(false),
            open_breakers: facade::gauge(BREAKERS, labels),
            breaker_opened: counter(BREAKERS_OPENED),
        }
    }

    /// Records the end of a call and its duration. A call that the breaker refused counts only as
    /// an error.
    #[inline]
    pub(crate) fn called(&self, command: Command, time: Duration, error: Option<&Error>) {
        if let Some(error) = error {
            self.failed(error);
            if matches!(error.kind(), ErrorKind::Unavailable { .. }) {
                return;
            }
        }
        if let Some(timer) = self.calls.get(command as usize) {
            timer.get_or_init(|| Box::new(self.timer(command))).record(time);
        }
    }

    #[cold]
    fn timer(&self, command: Command) -> Timer {
        Timer::new(CALLS, &[("server", &self.server), ("command", command.name())])
    }

    #[cold]
    fn failed(&self, error: &Error) {
        let kinds = ErrorKind::NAMES.iter().zip(&self.errors);
        let counter = kinds.into_iter().find(|(name, _)| **name == error.kind().name());
        counter.iter().for_each(|(_, counter)| counter.increment());
    }

    /// Records a lookup that returned no item because of a server fault.
    pub(crate) fn degraded(&self) {
        self.degraded.increment();
    }

    /// Starts to measure a wait for a connection. The measurement ends when the returned guard is
    /// dropped.
    pub(crate) fn wait(&self) -> WaitTime<'_> {
        WaitTime { timer: &self.waits, start_time: Instant::now() }
    }

    /// Records an opened connection.
    pub(crate) fn opened(self: &Arc<Self>) -> OpenConnection {
        self.opened.increment();
        self.open.increment(1_u32);
        #[cfg(feature = "tracing")]
        tracing::debug!(target: TARGET, server = &*self.server, "connection opened");
        OpenConnection { recorder: Arc::clone(self), reason: CloseReason::ClientClosed }
    }

    /// Records the state of the breaker after a call. `error` is the call's error. Does nothing if
    /// the state has not changed.
    pub(crate) fn breaker(&self, is_open: bool, error: Option<&Error>) {
        if self.breaker_is_open.swap(is_open, Ordering::Relaxed) == is_open {
            return;
        }
        if is_open {
            self.breaker_opened.increment();
            self.open_breakers.increment(1_u32);
            // Log only the name of the error: the complete error could contain the server's reply,
            // and the reply may contain part of a value.
            #[cfg(feature = "tracing")]
            tracing::warn!(
                target: TARGET,
                server = &*self.server,
                error = error.map(|error| error.kind().name()),
                "breaker opened after several failures: the client pauses calls to the server"
            );
        } else {
            self.open_breakers.decrement(1_u32);
            #[cfg(feature = "tracing")]
            tracing::warn!(
                target: TARGET,
                server = &*self.server,
                "breaker closed: the server replies again"
            );
        }
        #[cfg(not(feature = "tracing"))]
        let _ = error;
    }

    /// Returns a snapshot. It includes the given numbers of connections, idle connections and
    /// waiting calls.
    pub(crate) fn snapshot(&self, (open, idle, waiting): (usize, usize, usize)) -> ServerMetrics {
        let call = |timer: &OnceLock<Box<Timer>>| timer.get().map(|timer| timer.get());
        ServerMetrics {
            server: Arc::clone(&self.server),
            open,
            idle,
            waiting,
            opened: self.opened.get(),
            waits: self.waits.get(),
            abandoned: self.abandoned.get(),
            degraded: self.degraded.get(),
            breaker_is_open: self.breaker_is_open.load(Ordering::Relaxed),
            breaker_opened: self.breaker_opened.get(),
            calls: self.calls.iter().map(|timer| call(timer).unwrap_or_default()).collect(),
            errors: ErrorKind::NAMES
                .into_iter()
                .zip(self.errors.iter().map(Counter::get))
                .collect(),
            closed: self.closed.iter().map(Counter::get).collect(),
        }
    }
}

impl Drop for ServerRecorder {
    fn drop(&mut self) {
        if *self.breaker_is_open.get_mut() {
            self.open_breakers.decrement(1_u32);
        }
    }
}

/// A guard that measures a wait for a connection, and records the duration when the guard is
/// dropped.
#[derive(Debug)]
pub(crate) struct WaitTime<'r> {
    timer: &'r Timer,
    start_time: Instant,
}

impl Drop for WaitTime<'_> {
    fn drop(&mut self) {
        self.timer.record(self.start_time.elapsed());
    }
}

/// A guard that counts a connection as open until the guard is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    recorder: Arc<ServerRecorder>,
    /// The reason to report when the connection is dropped.
    reason: CloseReason,
}

impl OpenConnection {
    /// Sets the reason for closing.
    pub(crate) fn closes(&mut self, reason: CloseReason) {
        self.reason = reason;
    }

    /// Counts a sent request whose caller has given up. The connection drops the reply if the reply
    /// arrives.
    pub(crate) fn abandoned(&self) {
        self.recorder.abandoned.increment();
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let Self { recorder, reason } = self;
        if let Some(closed) = recorder.closed.get(*reason as usize) {
            closed.increment();
        }
        recorder.open.decrement(1_u32);
        #[cfg(feature = "tracing")]
        tracing::debug!(
            target: TARGET,
            server = &*recorder.server,
            reason = reason.name(),
            "connection closed"
        );
    }
}

/// The metrics of a client that do not belong to one server.
#[derive(Debug)]
pub(crate) struct ClientRecorder {
    won: Counter,
    waited: Counter,
    stale: Counter,
    coalesced: Counter,
    computed: Counter,
    failed: Counter,
    lists_replaced: Counter,
}

impl Default for ClientRecorder {
    fn default() -> Self {
        facade::describe(&NAMES);
        let by = |name, outcome| Counter::new(name, &[("outcome", outcome)]);
        Self {
            won: by(LEASES, "won"),
            waited: by(LEASES, "waited"),
            stale: by(LEASES, "stale"),
            coalesced: Counter::new(COALESCED, &[]),
            computed: by(COMPUTED, "computed"),
            failed: by(COMPUTED, "failed"),
            lists_replaced: Counter::new(LISTS, &[]),
        }
    }
}

impl ClientRecorder {
    /// Records the reply to a lookup that requested a lease.
    pub(crate) fn looked(&self, found: &LeaseAnswer) {
        match found {
            LeaseAnswer::Won { .. } => self.won.increment(),
            LeaseAnswer::Stale(_) => self.stale.increment(),
            LeaseAnswer::Value(_) | LeaseAnswer::Taken | LeaseAnswer::Missing => (),
        }
    }

    /// Counts a caller that polls for the lease.
    pub(crate) fn waits(&self) {
        self.waited.increment();
    }

    /// Counts a call that received the result of another call by the same client.
    pub(crate) fn coalesced(&self) {
        self.coalesced.increment();
    }

    /// Counts a finished computation.
    pub(crate) fn computed(&self, is_failed: bool) {
        if is_failed { self.failed.increment() } else { self.computed.increment() }
    }

    /// Records a replacement of the server list.
    pub(crate) fn list_replaced<'s>(&self, servers: impl Iterator<Item = &'s str>) {
        self.lists_replaced.increment();
        #[cfg(feature = "tracing")]
        tracing::debug!(
            target: TARGET,
            servers = servers.collect::<Vec<_>>().join(","),
            "list of servers replaced"
        );
        #[cfg(not(feature = "tracing"))]
        drop(servers);
    }

    pub(crate) fn computing(&self) -> ComputingMetrics {
        ComputingMetrics {
            won: self.won.get(),
            waited: self.waited.get(),
            stale: self.stale.get(),
            coalesced: self.coalesced.get(),
            computed: self.computed.get(),
            failed: self.failed.get(),
        }
    }

    pub(crate) fn lists_replaced(&self) -> u64 {
        self.lists_replaced.get()
    }
}
