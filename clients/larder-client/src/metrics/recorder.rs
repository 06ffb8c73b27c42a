//! What is counted of a server and of a client. Every event is counted, reported and traced here.

use super::command::Command;
use super::facade;
use super::number::{Counter, Timer};
use super::reason::CloseReason;
use super::snapshot::{ComputingMetrics, ServerMetrics};
use crate::core::lease::Found;
use crate::error::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The names of what is reported, and what it is.
const NAMES: [(&str, &str); 14] = [
    (CALLS, "Time from a call until its reply was read or it failed, by command."),
    (ERRORS, "Calls that failed, by the kind of error."),
    (DEGRADED, "Look-ups that found nothing because the server was at fault."),
    (WAITS, "Time that calls waited for a connection, of those that had to."),
    (OPEN, "Connections that are open."),
    (OPENED, "Connections that were opened."),
    (CLOSED, "Connections that were closed, by the reason."),
    (ABANDONED, "Replies on shared connections whose callers had given up."),
    (BREAKERS, "Breakers that are open: servers that are left alone after many faults."),
    (BREAKERS_OPENED, "How often breakers opened."),
    (LEASES, "Leases of get_or_compute, by the outcome: won, waited or stale."),
    (COALESCED, "Calls of get_or_compute that got what another call of the process computed."),
    (COMPUTED, "Computations of get_or_compute, by the outcome: computed or failed."),
    (LISTS, "Lists of servers that were replaced."),
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

/// The source of events.
#[cfg(feature = "tracing")]
const TARGET: &str = "larder_client";

/// What is counted of a server.
#[derive(Debug)]
pub(crate) struct ServerRecorder {
    server: Arc<str>,
    /// By command. A program uses few of them.
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

    /// A call has ended after a time. One that the breaker refused took none.
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

    /// A look-up found nothing because the server was at fault.
    pub(crate) fn degraded(&self) {
        self.degraded.increment();
    }

    /// A call waits for a connection until this is dropped.
    pub(crate) fn wait(&self) -> WaitTime<'_> {
        WaitTime { timer: &self.waits, begun: Instant::now() }
    }

    /// A connection was opened.
    pub(crate) fn opened(self: &Arc<Self>) -> OpenConnection {
        self.opened.increment();
        self.open.increment(1_u32);
        #[cfg(feature = "tracing")]
        tracing::debug!(target: TARGET, server = &*self.server, "connection opened");
        OpenConnection { recorder: Arc::clone(self), reason: CloseReason::ClientClosed }
    }

    /// The breaker is open or closed, after a call that ended with `error`.
    pub(crate) fn breaker(&self, is_open: bool, error: Option<&Error>) {
        if self.breaker_is_open.swap(is_open, Ordering::Relaxed) == is_open {
            return;
        }
        if is_open {
            self.breaker_opened.increment();
            self.open_breakers.increment(1_u32);
            // All of the error would show what the server said, which may be a part of a value.
            #[cfg(feature = "tracing")]
            tracing::warn!(
                target: TARGET,
                server = &*self.server,
                error = error.map(|error| error.kind().name()),
                "breaker opened: the server failed several times and is left alone for a moment"
            );
        } else {
            self.open_breakers.decrement(1_u32);
            #[cfg(feature = "tracing")]
            tracing::warn!(
                target: TARGET,
                server = &*self.server,
                "breaker closed: the server answers again"
            );
        }
        #[cfg(not(feature = "tracing"))]
        let _ = error;
    }

    /// What was counted, with the connections that there are, those of them that are idle, and the calls that wait.
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

/// A call that waits for a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitTime<'r> {
    timer: &'r Timer,
    begun: Instant,
}

impl Drop for WaitTime<'_> {
    fn drop(&mut self) {
        self.timer.record(self.begun.elapsed());
    }
}

/// A connection that is open, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    recorder: Arc<ServerRecorder>,
    /// That of a connection that is dropped for no other.
    reason: CloseReason,
}

impl OpenConnection {
    /// Says why it will be closed.
    pub(crate) fn closes(&mut self, reason: CloseReason) {
        self.reason = reason;
    }

    /// A request was sent whose caller has given up since: its reply has come for nobody, or will never come.
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

/// What is counted of a client.
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
    /// A server has answered a caller that would compute the value.
    pub(crate) fn looked(&self, found: &Found) {
        match found {
            Found::Won { .. } => self.won.increment(),
            Found::Stale(_) => self.stale.increment(),
            Found::Value(_) | Found::Taken | Found::Missing => (),
        }
    }

    /// A caller waits for the computation of another process.
    pub(crate) fn waits(&self) {
        self.waited.increment();
    }

    /// A caller got what another one of the process has computed.
    pub(crate) fn coalesced(&self) {
        self.coalesced.increment();
    }

    /// A computation has ended.
    pub(crate) fn computed(&self, is_failed: bool) {
        if is_failed { self.failed.increment() } else { self.computed.increment() }
    }

    /// The list of servers was replaced by this one.
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
