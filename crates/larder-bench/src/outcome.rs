//! What a run found, as it is kept and compared.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Latency counts from when a request was due rather than from when it was sent.
    pub open_loop: bool,
    /// By command: `set`, `get`, and `total`.
    pub commands: BTreeMap<String, Command>,
    /// What answering took on the server's side, if it runs on this machine.
    pub server: Option<ServerCost>,
    /// User and system CPU seconds of the load itself.
    pub load_cpu_seconds: f64,
    /// What went wrong, and how often: error replies, lost connections, wrong values.
    pub faults: BTreeMap<String, u64>,
}

impl Outcome {
    /// All commands together.
    #[must_use]
    pub fn total(&self) -> Command {
        self.commands.get("total").cloned().unwrap_or_default()
    }
}

/// One command's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Requests answered.
    pub requests: u64,
    /// The same by second.
    pub per_second: f64,
    /// Keys found.
    pub hits: u64,
    /// Keys not found.
    pub misses: u64,
    /// Error replies.
    pub errors: u64,
    /// Bytes of the values that came.
    pub value_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// How long answers took.
    pub latency: Latency,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half are faster.
    pub p50: f64,
    /// 9 in 10.
    pub p90: f64,
    /// 99 in 100.
    pub p99: f64,
    /// 999 in 1,000.
    pub p99_9: f64,
    /// 9,999 in 10,000.
    pub p99_99: f64,
    /// The slowest.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

/// What the server took, from the kernel's accounting of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerCost {
    /// The server's process.
    pub pid: i32,
    /// User CPU a request, in microseconds.
    pub user_micros: f64,
    /// System CPU a request, in microseconds.
    pub system_micros: f64,
    /// Resident memory before the run, in bytes.
    pub rss_before: u64,
    /// Resident memory after it, in bytes.
    pub rss_after: u64,
    /// User cycles a request, where the machine counts them.
    pub cycles: Option<f64>,
    /// User instructions a request, where the machine counts them.
    pub instructions: Option<f64>,
}
