//! The results of a run, and its progress.

use crate::load::stats::client_stats::ClientStats;
use crate::load::stats::{LoadStats, histogram};
use crate::outcome::Outcome;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The results of a run, with latency histograms.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The figures of the run: throughput, latencies, CPU time and faults.
    pub outcome: Outcome,
    /// Latency histograms in nanoseconds, one per row of [`Outcome::commands`].
    pub histograms: BTreeMap<String, Histogram<u64>>,
    /// The start of the run.
    pub begun: Instant,
    /// The seconds of the run, without gaps. The last second can be shorter.
    pub by_second: Vec<Second>,
    /// Statistics of each connection and second; empty unless
    /// [`Settings::client_stats`](crate::Settings::client_stats) is set.
    pub clients: Vec<ClientStats>,
}

/// One second of a run.
#[derive(Clone, Debug)]
pub struct Second {
    /// Latencies of all commands together, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Number of requests that were answered without an error.
    pub requests: u64,
    /// Number of requests that were answered with an error, never answered or never sent.
    pub errors: u64,
}

impl Second {
    pub(super) fn new() -> Self {
        Self { latency: histogram(), requests: 0, errors: 0 }
    }

    pub(super) fn add(&mut self, stats: &LoadStats) {
        for command in &stats.commands {
            // Adding fails only if bounds differ, and all histograms have the same bounds.
            let _ = self.latency.add(&command.latency);
            self.requests += command.requests();
            self.errors += command.errors + command.never_answered + command.never_sent;
        }
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Number of requests that have been answered without an error.
    pub requests: u64,
    /// Number of requests per second that were answered without an error since the last call to
    /// `progress`.
    pub per_second: f64,
    /// 99th percentile of the latency, in microseconds, since the last call to `progress`.
    pub p99_micros: u64,
}
