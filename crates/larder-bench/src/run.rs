//! One run, from the first connection to the figures.

use crate::outcome::Outcome;
use crate::settings::Settings;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a run found, with all latencies.
#[derive(Debug)]
pub struct Measured {
    /// The figures.
    pub outcome: Outcome,
    /// Latencies by command, in microseconds.
    pub histograms: BTreeMap<String, Histogram<u64>>,
}

/// How a run is doing.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since the first request.
    pub elapsed: Duration,
    /// Requests answered so far.
    pub requests: u64,
    /// Requests per second since the last report.
    pub per_second: f64,
    /// p99 since the last report, in microseconds.
    pub p99_micros: u64,
}

/// Why a run could not be made or did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The server did not take a connection.
    #[error("cannot connect to {target}: {error}; is the server running?")]
    Connect {
        /// Whom.
        target: String,
        /// Why not.
        error: std::io::Error,
    },
}

/// Loads a server as `settings` say, from threads that run on the calling thread's cores, and
/// accounts `pid`, or else the process behind the socket, for it. `progress` is called about once a
/// second.
///
/// # Errors
/// The server can't be reached, or hangs up on all connections.
pub fn run(
    settings: &Settings,
    pid: Option<i32>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, RunError> {
    let _ = (settings, pid, progress);
    unimplemented!()
}
