//! Per-second statistics of each connection, for `--client-stats`.

use crate::load::stats::{Kind, histogram};
use hdrhistogram::Histogram;

/// The statistics of one connection.
#[derive(Clone, Debug)]
pub struct ClientStats {
    /// Number of the connection in the run, from 0.
    pub(crate) index: usize,
    /// Sets and gets in each second of the run.
    pub(crate) seconds: Vec<[ClientSecond; 2]>,
    /// Set and get latencies, in nanoseconds.
    pub(crate) latency: [Histogram<u64>; 2],
}

/// The figures of one command in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientSecond {
    /// Number of answered requests.
    pub(crate) requests: u64,
    /// Sum of all answered requests' latencies, in nanoseconds.
    pub(crate) latency: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl ClientStats {
    pub(crate) fn new(index: usize) -> Self {
        Self { index, seconds: Vec::new(), latency: [histogram(), histogram()] }
    }

    /// Returns the figures of a command in the second that contains `now`. `now` is in nanoseconds
    /// since the start of the run.
    pub(crate) fn at(&mut self, kind: Kind, now: u64) -> &mut ClientSecond {
        let second = usize::try_from(now / 1_000_000_000).unwrap_or(usize::MAX);
        while self.seconds.len() <= second {
            self.seconds.push(Default::default());
        }
        &mut self.seconds[second][place(kind)]
    }

    pub(crate) fn answered(&mut self, kind: Kind, now: u64, latency: u64) {
        let second = self.at(kind, now);
        second.requests += 1;
        second.latency += latency;
        self.latency[place(kind)].saturating_record(latency);
    }
}

fn place(kind: Kind) -> usize {
    usize::from(!kind.is_set())
}
