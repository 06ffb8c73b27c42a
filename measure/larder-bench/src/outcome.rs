//! The results of a run, as result files contain them.

use larder_target::FlashStats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Seconds from the start of the run to the last reply. If a time limit, a signal or an early
    /// end stopped the run after the last reply, these are the seconds until that stop.
    pub seconds: f64,
    /// Whether latency counts from the time at which a request was scheduled (open loop) or sent
    /// (closed loop).
    pub open_loop: bool,
    /// Open loop: the scheduled load, and the delays of the load generator. `None` in a closed
    /// loop.
    pub offered: Option<Offered>,
    /// The reason for an early end: a signal, a server that sends no replies, the loss of all
    /// connections, or a line of a trace that cannot be read or sent. `None` for a complete run.
    pub ended_early: Option<String>,
    /// Number of connections.
    pub connections: u64,
    /// Number of lost connections; 0 with `--reconnect-on-error`.
    pub lost_connections: u64,
    /// With `--reconnect-on-error`: the outage, and the replies after it. `None` if no open
    /// connection was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interruption: Option<Interruption>,
    /// The result rows by name: one per command (such as `set`), three per key space (`NAME`,
    /// `NAME-set`, `NAME-get`), and `total` for all requests.
    pub commands: BTreeMap<String, Command>,
    /// CPU time and memory of the server, if there is only one server and it runs on this machine.
    pub server: Option<ServerCost>,
    /// The activity of the server's flash tier, if there is only one server and the server has a
    /// flash tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flash: Option<FlashUse>,
    /// The replies of each server, if there are several servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerOutcome>,
    /// User and system CPU seconds of the load generator itself.
    pub load_cpu_seconds: f64,
    /// Number of faults by kind: error replies, wrong values, lost connections, and requests that
    /// were never sent or never answered. With `--reconnect-on-error`, lost connections and their
    /// unanswered requests are not faults. Faults of `--fill` have the prefix `fill: `.
    pub faults: BTreeMap<String, u64>,
}

impl Outcome {
    /// Returns the results of all commands together.
    #[must_use]
    pub fn total(&self) -> Command {
        self.commands.get("total").cloned().unwrap_or_default()
    }

    /// Returns the total number of faults.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Removes and returns the faults of `--fill`. Several runs can share one fill, so its faults
    /// must count once.
    #[must_use]
    pub fn take_fill_faults(&mut self) -> BTreeMap<String, u64> {
        let (of_fill, others) = std::mem::take(&mut self.faults)
            .into_iter()
            .partition(|(what, _)| what.starts_with(FILL));
        self.faults = others;
        of_fill
    }
}

/// Prefix of faults that occurred during `--fill`.
pub(crate) const FILL: &str = "fill: ";

/// The lost connections of a run, and the replies on reconnected connections. Times are in seconds
/// since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interruption {
    /// Number of times that a connection was lost. One connection can count several times.
    pub lost_connections: u64,
    /// Number of requests that were outstanding when their connection was lost.
    pub lost_requests: u64,
    /// The time at which the first connection was lost.
    pub begun_secs: f64,
    /// The time of the first reply on a reconnected connection; `None` if none arrived.
    pub answered_secs: Option<f64>,
    /// The time of the first hit on a reconnected connection; `None` if none arrived.
    pub hit_secs: Option<f64>,
    /// Number of hits on reconnected connections.
    pub hits_after: u64,
    /// Number of misses on reconnected connections.
    pub misses_after: u64,
}

/// The scheduled load of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offered {
    /// Scheduled requests per second: the rate of the settings. For a trace, and for bursts with
    /// `--clients-start`: the mean rate at which requests were due.
    pub per_second: f64,
    /// Number of requests that were due.
    pub due: u64,
    /// Delays of the load generator. A delay starts when a request is due and a connection is free,
    /// and ends when the request is sent. A pipeline or a burst counts once.
    pub lateness: Latency,
}

/// The results of one command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Command {
    /// Number of requests that were answered without an error.
    pub requests: u64,
    /// Number of requests per second that were answered without an error.
    pub per_second: f64,
    /// Number of keys that were found.
    pub hits: u64,
    /// Number of keys that were not found, plus the number of values that the server did not store.
    /// The second number covers generated sets, and recorded requests other than `set` and `cas`.
    pub misses: u64,
    /// Number of requests that were answered with an error.
    pub errors: u64,
    /// Number of requests that were sent and not answered.
    pub never_answered: u64,
    /// Number of requests that were due and not sent: requests of an open loop, requests for a lost
    /// server, and recorded requests for a lost connection.
    pub never_sent: u64,
    /// Total size of the returned values, in bytes.
    pub value_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Latency of all requests that were due. Requests without a reply count with their waiting
    /// time until the end of the run or, with `--reconnect-on-error`, until the loss of their
    /// connection.
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

/// The replies from one of several servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerOutcome {
    /// The server's address.
    pub address: String,
    /// Number of requests that were answered without an error. A get of several keys counts once at
    /// each server that owns at least one of them.
    pub requests: u64,
    /// Number of requests that were answered with an error.
    pub errors: u64,
    /// Number of keys that were found.
    pub hits: u64,
    /// Number of keys that were not found.
    pub misses: u64,
    /// Number of lost connections.
    pub lost_connections: u64,
    /// CPU time and memory of the server, if it runs on this machine.
    pub cost: Option<ServerCost>,
    /// The activity of the server's flash tier, if the server has a flash tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flash: Option<FlashUse>,
}

/// The activity of a server's flash tier during a run. Unless a field says otherwise, it is the
/// increase of the server's statistic during the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlashUse {
    /// Number of keys that were found, in memory or on flash.
    pub hits: u64,
    /// Number of hits that were read from flash.
    pub hits_from_flash: u64,
    /// The share of hits that were read from flash; `None` without hits.
    pub share_from_flash: Option<f64>,
    /// Number of reads from flash without a result, because the request was cancelled or the record
    /// was overwritten or corrupt.
    pub failed_reads: u64,
    /// Number of sets.
    pub sets: u64,
    /// Bytes written to flash.
    pub written_bytes: u64,
    /// Bytes read from flash.
    pub read_bytes: u64,
    /// Number of items on flash after the run.
    pub items: u64,
    /// Bytes of the items on flash after the run.
    pub used_bytes: u64,
}

impl FlashUse {
    #[expect(clippy::cast_precision_loss, reason = "a share needs no last digit")]
    pub(crate) fn between(before: &FlashStats, after: &FlashStats) -> Self {
        // A server that restarts counts from 0 again, so the difference could be negative.
        let since = |count: fn(&FlashStats) -> u64| count(after).saturating_sub(count(before));
        let (hits, failed_reads) = (since(|s| s.hits), since(|s| s.failed_reads));
        let hits_from_flash = since(|s| s.reads).saturating_sub(failed_reads);
        Self {
            hits,
            hits_from_flash,
            share_from_flash: (hits > 0).then(|| hits_from_flash as f64 / hits as f64),
            failed_reads,
            sets: since(|s| s.sets),
            written_bytes: since(|s| s.written_bytes),
            read_bytes: since(|s| s.read_bytes),
            items: after.items,
            used_bytes: after.used_bytes,
        }
    }
}

/// CPU time and memory of the server, from the kernel's accounting of its process and all
/// descendant processes. Figures per request refer to requests that were answered without an error.
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
    /// Resident memory after the run, in bytes.
    pub rss_after: u64,
    /// Bytes that the server wrote to storage devices, where the system reports them.
    #[serde(default)]
    pub written_bytes: Option<u64>,
    /// CPU cycles in user mode per request, where the machine has hardware counters.
    pub cycles: Option<f64>,
    /// Instructions in user mode per request, where the machine has hardware counters.
    pub instructions: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_hits_from_flash() {
        let before = FlashStats { hits: 100, reads: 50, sets: 10, ..FlashStats::default() };
        let after = FlashStats {
            hits: 300,
            reads: 102,
            failed_reads: 2,
            sets: 30,
            items: 9,
            ..FlashStats::default()
        };
        let used = FlashUse::between(&before, &after);
        assert_eq!((used.hits, used.hits_from_flash, used.failed_reads), (200, 50, 2));
        assert_eq!((used.share_from_flash, used.sets, used.items), (Some(0.25), 20, 9));
        assert_eq!(FlashUse::between(&after, &after).share_from_flash, None);
    }
}
