//! The results of a run, as result files contain them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Time from the first request to the last answer, and at least the time for which requests
    /// were sent.
    pub seconds: f64,
    /// Whether latency is measured from a request's scheduled time (open loop) instead of from when
    /// it was sent (closed loop).
    pub open_loop: bool,
    /// Open loop: what was asked of the server, and how punctual the load was.
    pub offered: Option<Offered>,
    /// Why the run ended before its time: a signal, a server that answered nothing, or no connection
    /// that was left.
    pub ended_early: Option<String>,
    /// Number of connections.
    pub connections: u64,
    /// Number of connections that were lost.
    pub lost_connections: u64,
    /// Results by command: `set`, `get`, and `total` for both.
    pub commands: BTreeMap<String, Command>,
    /// CPU time and memory of the server, if there is one and it runs on this machine.
    pub server: Option<ServerCost>,
    /// What each server answered, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerOutcome>,
    /// User and system CPU seconds of the load generator itself.
    pub load_cpu_seconds: f64,
    /// Number of faults by kind: error replies, wrong values, lost connections, and requests that
    /// were never sent or never answered. Faults while the keys were set have the prefix `fill: `.
    pub faults: BTreeMap<String, u64>,
}

impl Outcome {
    /// The results of all commands together.
    #[must_use]
    pub fn total(&self) -> Command {
        self.commands.get("total").cloned().unwrap_or_default()
    }

    /// Number of faults of all kinds.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Removes the faults that occurred while the keys were set, and returns them: of several runs
    /// over the same items, they are those of all runs.
    #[must_use]
    pub fn take_fill_faults(&mut self) -> BTreeMap<String, u64> {
        let (of_fill, others) = std::mem::take(&mut self.faults)
            .into_iter()
            .partition(|(what, _)| what.starts_with(FILL));
        self.faults = others;
        of_fill
    }
}

/// Prefix of the faults that occurred while the keys were set.
pub(crate) const FILL: &str = "fill: ";

/// The load of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offered {
    /// Requests per second that were asked for: the rate that was set, or the mean of what was due if
    /// that rate is the trace's, or that of bursts of connections that are opened one after the other.
    pub per_second: f64,
    /// Number of requests that were due.
    pub due: u64,
    /// How late the load generator itself was: the time from when a request was due and a connection
    /// was free until it was sent.
    pub lateness: Latency,
}

/// The results of one command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Command {
    /// Number of requests that were answered without an error.
    pub requests: u64,
    /// Requests per second that were answered without an error.
    pub per_second: f64,
    /// Number of keys that were found.
    pub hits: u64,
    /// Number of keys that were not found.
    pub misses: u64,
    /// Number of requests that were answered with an error.
    pub errors: u64,
    /// Number of requests that were sent and not answered.
    pub never_answered: u64,
    /// Number of requests of an open loop that were due and not sent.
    pub never_sent: u64,
    /// Total size of the values that were returned.
    pub value_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Latency of all requests that were due. Those without an answer count with the time that they
    /// had waited when the run ended.
    pub latency: Latency,
}

/// Latency percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// Maximum.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation.
    #[serde(default)]
    pub deviation: f64,
}

/// What one of several servers answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerOutcome {
    /// The server's address.
    pub address: String,
    /// Number of requests that were answered without an error. A get of several keys is one request
    /// to each server that has some of them.
    pub requests: u64,
    /// Number of requests that were answered with an error.
    pub errors: u64,
    /// Number of keys that were found.
    pub hits: u64,
    /// Number of keys that were not found.
    pub misses: u64,
    /// Number of connections that were lost.
    pub lost_connections: u64,
    /// CPU time and memory of the server, if it runs on this machine.
    pub cost: Option<ServerCost>,
}

/// CPU time and memory of the server, from the kernel's accounting of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerCost {
    /// Process ID of the server.
    pub pid: i32,
    /// User CPU time per request, in microseconds.
    pub user_micros: f64,
    /// System CPU time per request, in microseconds.
    pub system_micros: f64,
    /// Resident memory before the run, in bytes.
    pub rss_before: u64,
    /// Resident memory after it, in bytes.
    pub rss_after: u64,
    /// CPU cycles in user mode per request, where the machine has hardware counters.
    pub cycles: Option<f64>,
    /// Instructions in user mode per request, where the machine has hardware counters.
    pub instructions: Option<f64>,
}
