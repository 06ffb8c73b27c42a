//! The schedule of an open loop with fixed or random intervals.

use crate::load::stats::{Kind, LoadStats};
use crate::load::workload::Load;
use crate::settings::Arrivals;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp1};
use std::time::Duration;

/// The due times of a thread's requests in an open loop. A full pipeline of requests is due at each
/// of these times.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Due time of the next pipeline, in nanoseconds since the start of the run.
    next: f64,
    /// Mean interval between the pipelines of the thread, in nanoseconds.
    step: f64,
    /// Random number generator of the intervals; `None` for fixed intervals.
    random: Option<SmallRng>,
    /// Index of the client that sends the next pipeline. If this client is busy, the next free
    /// client sends it.
    pub(crate) client: usize,
    /// Whether a due pipeline waits because no client is free.
    pub(crate) blocked: bool,
    /// The time at which a client became free and cleared `blocked`, in nanoseconds since the start
    /// of the run.
    pub(crate) free_at: u64,
}

/// [`Schedule::count_never_sent`] divides unsent requests into fewer than twice this number of
/// groups. All requests of a group count with the same waiting time.
const NEVER_SENT_STEPS: u64 = 1 << 20;

impl Schedule {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub(crate) fn new(rate: u64, load: &Load, thread: usize) -> Self {
        let step = 1e9 * load.settings.pipeline as f64 / rate as f64;
        let threads = load.settings.threads as f64;
        let mut schedule = Self {
            // Threads send pipelines in rotation, so each thread starts one interval after the
            // previous thread.
            next: step * thread as f64,
            step: step * threads,
            random: None,
            client: 0,
            blocked: false,
            free_at: 0,
        };
        if load.settings.arrivals == Arrivals::Poisson {
            // The sum of the threads' Poisson processes is a Poisson process with the full rate.
            // The seeds differ from those of the clients' requests.
            let seed = load.settings.seed.wrapping_add(thread as u64).rotate_left(32);
            schedule.random = Some(SmallRng::seed_from_u64(!seed));
            schedule.next = 0.0;
            schedule.advance();
        }
        schedule
    }

    /// Returns the time from the start of the run until the next pipeline is due.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and at most the length of a run"
    )]
    pub(crate) fn due(&self) -> Duration {
        Duration::from_nanos(self.next as u64)
    }

    /// Advances to the next pipeline.
    pub(crate) fn advance(&mut self) {
        let interval: f64 = match &mut self.random {
            Some(random) => Exp1.sample(random),
            None => 1.0,
        };
        self.next += self.step * interval;
    }

    /// Counts up to `left` unsent requests that were due before `until` as never sent, with their
    /// waiting times until `now`.
    pub(crate) fn count_never_sent(
        mut self,
        until: Duration,
        now: Duration,
        mut left: u64,
        load: &Load,
        stats: &mut LoadStats,
    ) {
        let pipeline = load.settings.pipeline as u64;
        // Number of pipelines in a group. All requests of a group count with the due time of its
        // first pipeline.
        let group = (self.due_before(until) / NEVER_SENT_STEPS).max(1);
        let mut counted = 0;
        while left > 0 && self.due() < until {
            let waited = crate::load::nanos(now.saturating_sub(self.due()));
            let times = group.saturating_mul(pipeline).min(left);
            for (kind, times) in between(&load.cycle, counted, counted + times) {
                stats.never_sent(kind, times, waited);
            }
            (counted, left) = (counted + times, left - times);
            self.advance_by(group);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an interval needs no last digit")]
    fn advance_by(&mut self, pipelines: u64) {
        match pipelines {
            1 => self.advance(),
            // The sum of many random intervals is close to its mean.
            _ => self.next += self.step * pipelines as f64,
        }
    }

    /// Estimates the number of pipelines that are due before `until`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an estimate, and not negative"
    )]
    fn due_before(&self, until: Duration) -> u64 {
        ((until.as_nanos() as f64 - self.next).max(0.0) / self.step) as u64
    }
}

/// Returns how many of the requests `from..to` are of each kind if `cycle` repeats without end.
pub(super) fn between(
    cycle: &[(Kind, u64)],
    from: u64,
    to: u64,
) -> impl Iterator<Item = (Kind, u64)> {
    let whole: u64 = cycle.iter().map(|(_, times)| times).sum();
    let mut begin = 0;
    cycle.iter().map(move |(kind, times)| {
        let first = begin;
        begin += times;
        let before = |number: u64| {
            number / whole * times + (number % whole).saturating_sub(first).min(*times)
        };
        (*kind, before(to) - before(from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(random: Option<SmallRng>) -> Vec<f64> {
        let mut schedule =
            Schedule { next: 0.0, step: 1000.0, random, client: 0, blocked: false, free_at: 0 };
        let mut interval = || {
            let before = schedule.next;
            schedule.advance();
            schedule.next - before
        };
        (0..10_000).map(|_| interval()).collect()
    }

    #[test]
    fn fixed_intervals_are_even() {
        assert!(intervals(None).iter().all(|interval| (interval - 1000.0).abs() < 1e-6));
    }

    /// The intervals of a Poisson process are exponentially distributed: their standard deviation
    /// equals their mean, and a fraction of e^-1 of them is longer than the mean.
    #[test]
    fn random_intervals_are_those_of_a_poisson_process() {
        let intervals = intervals(Some(SmallRng::seed_from_u64(1)));
        let mean = |numbers: &mut dyn Iterator<Item = f64>| numbers.sum::<f64>() / 10_000.0;
        let average = mean(&mut intervals.iter().copied());
        let variance = mean(&mut intervals.iter().map(|i| (i - average).powi(2)));
        let longer = intervals.iter().filter(|interval| **interval > 1000.0).count();
        assert!((950.0..1050.0).contains(&average), "{average}");
        assert!((950.0..1050.0).contains(&variance.sqrt()), "{}", variance.sqrt());
        assert!((3500..3860).contains(&longer), "{longer}");
    }

    #[test]
    fn sets_and_gets_alternate() {
        let counts = |cycle: &[(Kind, u64)], from, to| -> Vec<u64> {
            between(cycle, from, to).map(|(_, times)| times).collect()
        };
        let cycle = [(Kind::Set(0), 2), (Kind::Get(0), 3)];
        let sets: Vec<u64> = (0..7).map(|number| counts(&cycle, number, number + 1)[0]).collect();
        assert_eq!(sets, [1, 1, 0, 0, 0, 1, 1]);
        assert_eq!(counts(&cycle, 1, 1001), [400, 600]);
        assert_eq!(counts(&[(Kind::Set(0), 0), (Kind::Get(0), 1)], 0, 10), [0, 10]);
        let three = [(Kind::Custom(2), 1), (Kind::Get(0), 1), (Kind::Custom(3), 2)];
        assert_eq!(counts(&three, 1, 7), [1, 2, 3]);
    }
}
