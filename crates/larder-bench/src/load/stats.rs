//! Counters and latency histograms of one worker thread.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// The commands that a run sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Set,
    Get,
}

impl Kind {
    pub(crate) const ALL: [(Self, &str); 2] = [(Self::Set, "set"), (Self::Get, "get")];
}

/// The statistics of a thread since its last report.
#[derive(Clone, Debug)]
pub(crate) struct LoadStats {
    commands: [CommandStats; 2],
    pub(crate) faults: BTreeMap<String, u64>,
}

/// The statistics of one command.
#[derive(Clone, Debug)]
pub(crate) struct CommandStats {
    /// In nanoseconds. Its count is the number of answered requests.
    pub(crate) latency: Histogram<u64>,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) errors: u64,
    pub(crate) value_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

/// Maximum number of kinds of faults; further kinds are counted together.
const FAULTS_MAX: usize = 100;

impl LoadStats {
    pub(crate) fn new() -> Self {
        Self { commands: [CommandStats::new(), CommandStats::new()], faults: BTreeMap::new() }
    }

    #[inline]
    pub(crate) fn of(&mut self, kind: Kind) -> &mut CommandStats {
        &mut self.commands[kind as usize]
    }

    /// Number of answered requests of all commands.
    pub(crate) fn requests(&self) -> u64 {
        self.commands.iter().map(|command| command.latency.len()).sum()
    }

    pub(crate) fn fault(&mut self, what: &str, times: u64) {
        let known = self.faults.len() < FAULTS_MAX || self.faults.contains_key(what);
        let what = if known { what } else { "other faults" };
        *self.faults.entry(what.to_owned()).or_default() += times;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.commands.iter_mut().zip(&other.commands) {
            mine.add(theirs);
        }
        for (what, times) in &other.faults {
            self.fault(what, *times);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.commands.iter_mut().for_each(CommandStats::clear);
        self.faults.clear();
    }
}

impl CommandStats {
    pub(crate) fn new() -> Self {
        Self {
            latency: histogram(),
            hits: 0,
            misses: 0,
            errors: 0,
            value_bytes: 0,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Adding fails only if bounds differ; all histograms have the same ones.
        let _ = self.latency.add(&other.latency);
        self.hits += other.hits;
        self.misses += other.misses;
        self.errors += other.errors;
        self.value_bytes += other.value_bytes;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
    }

    fn clear(&mut self) {
        self.latency.reset();
        (self.hits, self.misses, self.errors) = (0, 0, 0);
        (self.value_bytes, self.sent_bytes, self.received_bytes) = (0, 0, 0);
    }
}

/// An empty histogram of nanoseconds up to an hour, with three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("sound bounds")
}
