//! How long requests take: from the event that had a turn begin to the end of the turn, so that the
//! turns of other connections before it count, too. A request that waits for slower storage, or whose
//! answer waits for an acknowledgement, is timed from its first turn to the last.
//!
//! The beginning is a reading that the driver needs anyway, and a turn that answers nothing is not timed.

use larder_operations::{AnsweredCounts, Latencies};
use larder_session::{Next, Progress};
use larder_support::clock::{Clock, Moment};

/// What times a turn.
#[derive(Clone, Copy, Debug)]
pub struct Timing<'a> {
    /// When the event was reported.
    pub begun: Moment,
    /// The server's clock.
    pub clock: &'a Clock,
    /// Where the thread's requests are counted.
    pub latencies: &'a Latencies,
}

/// What a conversation's turns have left to be timed. It takes memory only while a request waits.
#[derive(Debug, Default)]
pub(crate) struct TurnTimer(Option<Box<Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// When the first turn began that had to wait.
    begun: Moment,
    /// Requests whose answers are held.
    answered: AnsweredCounts,
}

impl TurnTimer {
    /// Counts the requests whose answers the turn has released.
    #[inline]
    pub(crate) fn end_turn(&mut self, progress: &Progress, timing: &Timing<'_>) {
        let waits = progress.hold || progress.next == Next::Wait;
        if waits || self.0.is_some() {
            self.end_wait(progress, timing);
        } else if !progress.answered.is_empty() {
            record(timing.begun, &progress.answered, timing);
        }
    }

    /// The same for a turn that waits or has waited.
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

    /// Requests that were timed after these turns, and whether they took a second or more: the first turn
    /// began a second ago, the others begin now.
    fn timed(turns: &[Progress]) -> (u64, bool) {
        let (clock, latencies) = (Clock::start(), Latencies::default());
        let mut timer = TurnTimer::default();
        let now = clock.moment();
        for (i, progress) in turns.iter().enumerate() {
            let begun = if i == 0 { now.before(Duration::from_secs(1)) } else { now };
            timer.end_turn(progress, &Timing { begun, clock: &clock, latencies: &latencies });
        }
        let gets = latencies.of(CommandClass::Get);
        (gets.count(), gets.quantile(0.0).is_some_and(|took| took > Duration::from_secs(1)))
    }

    const READ: Next = Next::Read { wanted: 1 };

    #[test]
    fn a_turn_that_does_not_wait_is_timed_alone() {
        assert_eq!(timed(&[progress(3, false, READ)]), (3, true));
        assert_eq!(timed(&[progress(0, false, READ), progress(2, false, READ)]), (2, false));
    }

    #[test]
    fn a_request_that_waits_is_timed_from_its_first_turn() {
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
    fn held_answers_are_timed_when_they_are_released() {
        let held = [progress(2, true, READ), progress(0, true, READ)];
        assert_eq!(timed(&held), (0, false));
        let released = [held[0], held[1], progress(0, false, Next::Yield)];
        assert_eq!(timed(&released), (2, true));
        let later =
            [progress(0, false, Next::Wait), progress(0, false, READ), progress(1, false, READ)];
        assert_eq!(timed(&later), (1, false), "what comes after the wait is timed apart");
    }
}
