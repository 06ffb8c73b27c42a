//! Due requests that cannot be sent because their server's connection or their client is lost.

use crate::load::stats::{Kind, LoadStats};
use std::collections::BTreeMap;

/// Counts of requests that could not be sent, grouped by due time and command.
///
/// Due times are rounded down to steps. A step is initially a millisecond long. Whenever there are
/// more than [`ENTRIES_MAX`] combinations of step and command, the length of a step doubles, so
/// memory does not grow with the length of the run. Even after a doubling, a run with few commands
/// has tens of thousands of steps, so all but the shortest waiting times are about as precise as in
/// the histograms.
#[derive(Debug)]
pub(crate) struct Unsent {
    step_nanos: u64,
    /// Number of requests for each step and command. Steps are numbered from the start of the run.
    counts: BTreeMap<(u64, Kind), u64>,
}

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Maximum number of step and command combinations.
const ENTRIES_MAX: usize = 1 << 17;

impl Default for Unsent {
    fn default() -> Self {
        Self { step_nanos: NANOS_PER_MILLI, counts: BTreeMap::new() }
    }
}

impl Unsent {
    /// Adds a request that was due at `at`, in nanoseconds since the start of the run.
    #[cold]
    pub(crate) fn add(&mut self, kind: Kind, at: u64) {
        *self.counts.entry((at / self.step_nanos, kind)).or_default() += 1;
        if self.counts.len() > ENTRIES_MAX {
            self.double_steps();
        }
    }

    fn double_steps(&mut self) {
        self.step_nanos = self.step_nanos.saturating_mul(2);
        let mut counts = BTreeMap::new();
        for ((step, kind), times) in std::mem::take(&mut self.counts) {
            *counts.entry((step / 2, kind)).or_default() += times;
        }
        self.counts = counts;
    }

    /// Counts the requests as never sent. `now` is the end of the run, in nanoseconds since its
    /// start.
    pub(crate) fn count(self, now: u64, stats: &mut LoadStats) {
        for ((step, kind), times) in self.counts {
            stats.never_sent(kind, times, now.saturating_sub(step * self.step_nanos));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests per millisecond cannot be sent for ten minutes.
    #[test]
    fn a_long_run_takes_no_more_memory() {
        let (mut unsent, millis) = (Unsent::default(), 600_000);
        let kinds = [Kind::Set(0), Kind::Get(0)];
        for at in 0..millis {
            for kind in kinds {
                unsent.add(kind, at * NANOS_PER_MILLI);
                assert!(unsent.counts.len() <= ENTRIES_MAX);
            }
        }
        let mut stats = LoadStats::new();
        unsent.count(millis * NANOS_PER_MILLI, &mut stats);
        for kind in kinds {
            let command = stats.of(kind);
            assert_eq!((command.never_sent, command.latency.len()), (millis, millis));
            for quantile in [0.01, 0.1, 0.5, 0.9, 1.0] {
                let waited = command.latency.value_at_quantile(quantile) as f64;
                let expected = quantile * (millis * NANOS_PER_MILLI) as f64;
                assert!((waited / expected - 1.0).abs() < 0.005, "{quantile}: {waited}");
            }
        }
        assert_eq!(stats.faults["never sent"], 2 * millis);
    }
}
