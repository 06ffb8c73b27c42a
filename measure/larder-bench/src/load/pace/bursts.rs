//! The schedule of `--rate-limiting`, as in memtier_benchmark: all connections start a burst of
//! requests at the same time, at most 50 times per second.

use crate::load::pace::schedule::between;
use crate::load::stats::LoadStats;
use crate::load::workload::Load;
use std::time::Duration;

/// Maximum number of bursts per second in memtier_benchmark.
const TICKS_PER_SECOND: u64 = 50;

/// The burst schedule of a thread's connections.
#[derive(Debug)]
pub(crate) struct Bursts {
    /// Number of requests per burst.
    len: u64,
    /// Nanoseconds from one burst to the next.
    interval: f64,
    /// Number of bursts that have become due, per connection.
    ticks: u64,
    positions: Vec<BurstPosition>,
}

/// The position of a connection in its bursts.
#[derive(Clone, Copy, Debug, Default)]
struct BurstPosition {
    /// Number of bursts that the connection has started or skipped. `u64::MAX` after
    /// [`Bursts::retire`].
    started: u64,
    /// Number of unsent requests in the current burst.
    left: u64,
}

/// The next request of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The first request of a burst, with the burst's due time in nanoseconds since the start of
    /// the run.
    First(u64),
    /// A further request of the same burst.
    Further,
}

impl Bursts {
    /// Returns the schedule of `connections` connections, each with `rate` requests per second.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub(crate) fn new(rate: u64, connections: usize) -> Self {
        let rate = rate.max(1);
        let len = rate.div_ceil(TICKS_PER_SECOND);
        let interval = 1e9 * len as f64 / rate as f64;
        Self { len, interval, ticks: 0, positions: vec![BurstPosition::default(); connections] }
    }

    /// Returns the time at which the next burst of all connections is due, measured from the start
    /// of the run.
    pub(crate) fn due(&self) -> Duration {
        self.due_of(self.ticks)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "not negative, and at most the length of a run"
    )]
    fn due_of(&self, burst: u64) -> Duration {
        Duration::from_nanos((self.interval * burst as f64) as u64)
    }

    /// Advances to the next burst.
    pub(crate) fn advance(&mut self) {
        self.ticks += 1;
    }

    /// Skips the due bursts of a connection that a later step opens.
    pub(crate) fn skip(&mut self, index: usize) {
        self.positions[index].started = self.ticks;
    }

    /// Skips all further bursts of a connection that has no request left.
    pub(crate) fn retire(&mut self, index: usize) {
        self.positions[index] = BurstPosition { started: u64::MAX, left: 0 };
    }

    /// Takes the next due request of a connection, or returns `None` if none is due. A connection
    /// sends all requests of a burst before the first request of the next burst.
    pub(crate) fn next(&mut self, index: usize) -> Option<Next> {
        let BurstPosition { started, left } = self.positions[index];
        if left > 0 {
            self.positions[index].left -= 1;
            return Some(Next::Further);
        }
        (started < self.ticks).then(|| {
            self.positions[index] = BurstPosition { started: started + 1, left: self.len - 1 };
            Next::First(crate::load::nanos(self.due_of(started)))
        })
    }

    /// Returns whether a due request is unsent.
    pub(crate) fn is_behind(&self) -> bool {
        self.positions.iter().any(|position| position.left > 0 || position.started < self.ticks)
    }

    /// Counts up to `left` due requests as never sent. Each has waited from the due time of its
    /// burst until `now`.
    pub(crate) fn count_never_sent(
        &self,
        now: Duration,
        mut left: u64,
        load: &Load,
        stats: &mut LoadStats,
    ) {
        let mut counted = 0;
        for position in &self.positions {
            let current = (position.started.saturating_sub(1), position.left);
            let others = (position.started..self.ticks).map(|burst| (burst, self.len));
            for (burst, times) in std::iter::once(current).chain(others) {
                let times = times.min(left);
                let waited = crate::load::nanos(now.saturating_sub(self.due_of(burst)));
                for (kind, times) in between(&load.cycle, counted, counted + times) {
                    stats.never_sent(kind, times, waited);
                }
                (counted, left) = (counted + times, left - times);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of requests per burst, and the milliseconds between bursts.
    fn burst(rate: u64) -> (u64, u128) {
        let mut bursts = Bursts::new(rate, 1);
        bursts.advance();
        (bursts.len, bursts.due().as_millis())
    }

    #[test]
    fn bursts_are_those_of_memtier_benchmark() {
        assert_eq!(burst(1), (1, 1000));
        assert_eq!(burst(50), (1, 20));
        assert_eq!(burst(100), (2, 20));
        assert_eq!(burst(3010), (61, 20));
        assert_eq!(burst(75), (2, 26));
    }

    #[test]
    fn a_late_connection_sends_one_burst_after_the_other() {
        let mut bursts = Bursts::new(100, 2);
        assert_eq!(bursts.next(0), None);
        bursts.advance();
        assert_eq!(bursts.next(0), Some(Next::First(0)));
        bursts.advance();
        let next: Vec<_> = (0..4).map(|_| bursts.next(0)).collect();
        let second = Some(Next::First(20_000_000));
        assert_eq!(next, [Some(Next::Further), second, Some(Next::Further), None]);
        assert!(bursts.is_behind());
        bursts.skip(1);
        assert_eq!((bursts.next(1), bursts.is_behind()), (None, false));
        bursts.advance();
        bursts.retire(0);
        bursts.skip(1);
        assert_eq!((bursts.next(0), bursts.is_behind()), (None, false), "it has sent all");
    }
}
