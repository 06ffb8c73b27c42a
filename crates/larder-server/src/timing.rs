//! Measures request latency. The measured time starts at [`Timing::begun`], and ends after the poll
//! that answers the request. With the per-core driver, it includes the polls of other connections
//! in the same iteration before this poll.
//!
//! A request can wait for slower storage or for another node, and a reply can wait for an
//! acknowledgement. Such a request takes several polls. Its latency lasts from `begun` of the first
//! poll that had to wait to the end of the last poll.
//!
//! The driver reads the clock for `begun`. This module reads it again only at the end of a poll
//! that answers requests.

use larder_operations::{AnsweredCounts, Latencies};
use larder_session::{Next, Progress};
use larder_support::clock::{Clock, Moment};

/// The clock readings and the histograms for one poll.
#[derive(Clone, Copy, Debug)]
pub struct Timing<'a> {
    /// The time at which the event-loop iteration (per-core driver) or the poll (Tokio drivers)
    /// started.
    pub begun: Moment,
    /// The server's clock.
    pub clock: &'a Clock,
    /// The thread's latency histograms.
    pub latencies: &'a Latencies,
}

/// The timer of a connection's requests. It is allocated only while a request waits or replies are
/// held.
#[derive(Debug, Default)]
pub(crate) struct RequestTimer(Option<Box<Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// The start of the measured time: [`Timing::begun`] of the first poll that had to wait.
    begun: Moment,
    /// The requests whose replies are held.
    answered: AnsweredCounts,
}

impl RequestTimer {
    /// Records the latency of the requests that a poll has answered. If their replies are held,
    /// records it later, at the poll that releases the replies.
    #[inline]
    pub(crate) fn end_poll(&mut self, progress: &Progress, timing: &Timing<'_>) {
        let waits = progress.hold || progress.next == Next::Wait;
        if waits || self.0.is_some() {
            self.end_wait(progress, timing);
        } else if !progress.answered.is_empty() {
            record(timing.begun, &progress.answered, timing);
        }
    }

    /// Implements [`Self::end_poll`] for a poll that waits, or that follows a poll that waited.
    #[cold]
    fn end_wait(&mut self, progress: &Progress, timing: &Timing<'_>) {
        let (begun, answered) = (timing.begun, AnsweredCounts::default());
        let mut waiting = self.0.take().unwrap_or_else(|| Box::new(Waiting { begun, answered }));
        waiting.answered.add_all(&progress.answered);
        if !progress.hold && !waiting.answered.is_empty() {
            record(waiting.begun, &std::mem::take(&mut waiting.answered), timing);
        }
        self.0 = (progress.hold || progress.next == Next::Wait).then_some(waiting);
    }
}

fn record(begun: Moment, answered: &AnsweredCounts, timing: &Timing<'_>) {
    timing.latencies.record(answered, timing.clock.moment().since(begun));
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_operations::CommandClass;
    use std::time::Duration;

    fn progress(gets: u32, hold: bool, next: Next) -> Progress {
        let mut answered = AnsweredCounts::default();
        answered.add(CommandClass::Get, gets);
        Progress { consumed: 0, hold, next, answered }
    }

    /// Simulates polls with these results. Returns the number of recorded requests, and whether one
    /// of them took more than a second. The first poll started a second ago, and the other polls
    /// start now.
    fn timed(turns: &[Progress]) -> (u64, bool) {
        let (clock, latencies) = (Clock::start(), Latencies::default());
        let mut timer = RequestTimer::default();
        let now = clock.moment();
        for (i, progress) in turns.iter().enumerate() {
            let begun = if i == 0 { now.before(Duration::from_secs(1)) } else { now };
            timer.end_poll(progress, &Timing { begun, clock: &clock, latencies: &latencies });
        }
        let gets = latencies.of(CommandClass::Get);
        (gets.count(), gets.quantile(0.0).is_some_and(|took| took > Duration::from_secs(1)))
    }

    const READ: Next = Next::Read { wanted: 1 };

    #[test]
    fn a_poll_without_waiting_is_timed_separately() {
        assert_eq!(timed(&[progress(3, false, READ)]), (3, true));
        assert_eq!(timed(&[progress(0, false, READ), progress(2, false, READ)]), (2, false));
    }

    #[test]
    fn a_waiting_request_is_timed_from_its_first_poll() {
        assert_eq!(timed(&[progress(0, false, Next::Wait)]), (0, false));
        let turns = [progress(0, false, Next::Wait), progress(1, false, READ)];
        assert_eq!(timed(&turns), (1, true));
        let turns = [
            progress(0, false, Next::Wait),
            progress(0, false, Next::Wait),
            progress(1, false, READ),
        ];
        assert_eq!(timed(&turns), (1, true));
    }

    #[test]
    fn held_replies_are_timed_when_they_are_released() {
        let held = [progress(2, true, READ), progress(0, true, READ)];
        assert_eq!(timed(&held), (0, false));
        let released = [held[0], held[1], progress(0, false, Next::Yield)];
        assert_eq!(timed(&released), (2, true));
        let later =
            [progress(0, false, Next::Wait), progress(0, false, READ), progress(1, false, READ)];
        assert_eq!(timed(&later), (1, false), "a request after the wait is timed separately");
    }
}
