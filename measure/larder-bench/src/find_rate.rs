//! Finds the highest open-loop rate at which a latency percentile stays within a bound.

use serde::Serialize;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The argument of `--find-rate`: a latency percentile and its upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The percentile, such as 99.
    pub percentile: f64,
    /// Maximum latency in milliseconds.
    pub millis: f64,
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(percentile, millis)| {
            Some(Self { percentile: percentile.parse().ok()?, millis: millis.parse().ok()? })
        });
        parsed
            .filter(|bound| bound.percentile > 0.0 && bound.percentile <= 100.0)
            .filter(|bound| bound.millis > 0.0 && bound.millis.is_finite())
            .ok_or_else(|| "expected PERCENTILE:MILLISECONDS, such as 99:1".to_owned())
    }
}

/// A run at one rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The scheduled requests per second.
    pub asked_per_second: u64,
    /// Requests per second that were answered without an error.
    pub got_per_second: f64,
    /// Latency at the percentile of the bound, in microseconds.
    pub latency_micros: f64,
    /// Number of faults.
    pub faults: u64,
    /// Whether the latency did not exceed the bound and the faults did not exceed the allowed
    /// number.
    pub passed: bool,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Search {
    /// All runs, in order.
    pub steps: Vec<Step>,
    /// The highest rate that passed, in requests per second; `None` if none passed.
    pub highest_per_second: Option<u64>,
    /// The lowest rate that failed, in requests per second; `None` if none failed.
    pub fails_at_per_second: Option<u64>,
    /// Number of faults of each kind during `--fill`, which precedes the first run.
    pub fill_faults: BTreeMap<String, u64>,
}

/// The first rate to try, in requests per second. A lower maximum replaces it.
const FIRST: u64 = 1000;

/// A search ends when the ratio of the lowest failing rate to the highest passing rate is at most
/// this number.
const PRECISION: f64 = 1.05;

impl Search {
    /// Searches for the highest rate up to `most` that passes. Doubles the rate until it fails or
    /// reaches `most`. If the first rate fails, halves the rate until it passes. Then bisects the
    /// interval between the highest passing and the lowest failing rate. A rate fails only if two
    /// runs at this rate fail, because a disturbance of the machine can make one run fail.
    ///
    /// # Errors
    /// The first error of `run`. `self` keeps the earlier results.
    pub(crate) fn go_on<E>(
        &mut self,
        most: u64,
        mut run: impl FnMut(u64) -> Result<Step, E>,
    ) -> Result<(), E> {
        let mut rate = FIRST.min(most).max(1);
        while self.passes(rate, &mut run)? && rate < most {
            rate = rate.saturating_mul(2).min(most);
        }
        while let (None, Some(failed @ 2..)) = (self.highest_per_second, self.fails_at_per_second) {
            self.passes(failed / 2, &mut run)?;
        }
        while let (Some(low), Some(high)) = (self.highest_per_second, self.fails_at_per_second)
            && let Some(middle) = between(low, high)
        {
            self.passes(middle, &mut run)?;
        }
        Ok(())
    }

    fn passes<E>(
        &mut self,
        rate: u64,
        run: &mut impl FnMut(u64) -> Result<Step, E>,
    ) -> Result<bool, E> {
        for _ in 0..2 {
            let step = run(rate)?;
            let passed = step.passed;
            self.steps.push(step);
            if passed {
                self.highest_per_second = Some(rate);
                return Ok(true);
            }
        }
        self.fails_at_per_second = Some(rate);
        Ok(false)
    }
}

/// Returns the midpoint of a passing and a failing rate, or `None` if their ratio is at most
/// [`PRECISION`] or there is no integer between them.
#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
fn between(low: u64, high: u64) -> Option<u64> {
    let is_close = high as f64 <= low as f64 * PRECISION || high - low < 2;
    (!is_close).then(|| low.midpoint(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches against a simulated server that passes up to `capacity` requests per second.
    fn search_of(capacity: u64, most: u64) -> Search {
        let run = |rate: u64| {
            let passed = rate <= capacity;
            let (got_per_second, latency_micros) = (rate as f64, 1.0);
            let (asked_per_second, faults) = (rate, 0);
            Ok::<_, ()>(Step { asked_per_second, got_per_second, latency_micros, faults, passed })
        };
        let mut search = Search::default();
        search.go_on(most, run).unwrap();
        search
    }

    #[test]
    fn the_highest_rate_is_found() {
        for capacity in [1, 7, 999, 1000, 1001, 62_011, 5_000_000] {
            let found = search_of(capacity, u64::MAX);
            let highest = found.highest_per_second.unwrap();
            let fails_at = found.fails_at_per_second.unwrap();
            assert!(highest <= capacity && capacity < fails_at, "{capacity}: {found:?}");
            let close = fails_at as f64 <= highest as f64 * PRECISION || fails_at - highest == 1;
            assert!(close, "{capacity}: {highest} to {fails_at}");
            assert!(found.steps.len() < 60, "{capacity}: {} runs", found.steps.len());
        }
    }

    #[test]
    fn no_rate_above_the_limit_is_tried() {
        let found = search_of(u64::MAX, 5000);
        assert_eq!((found.highest_per_second, found.fails_at_per_second), (Some(5000), None));
        let asked: Vec<u64> = found.steps.iter().map(|step| step.asked_per_second).collect();
        assert_eq!(asked, [1000, 2000, 4000, 5000]);
    }

    #[test]
    fn a_server_that_never_passes_has_no_rate() {
        let found = search_of(0, u64::MAX);
        assert_eq!((found.highest_per_second, found.fails_at_per_second), (None, Some(1)));
    }

    #[test]
    fn a_failure_is_tried_again() {
        let mut runs = 0;
        let mut found = Search::default();
        let result = found.go_on(1000, |rate| {
            runs += 1;
            let (asked_per_second, got_per_second, passed) = (rate, rate as f64, runs != 1);
            let (latency_micros, faults) = (1.0, 0);
            Ok::<_, ()>(Step { asked_per_second, got_per_second, latency_micros, faults, passed })
        });
        assert_eq!((result, found.highest_per_second, runs), (Ok(()), Some(1000), 2));
    }

    #[test]
    fn results_before_an_error_are_kept() {
        let mut found = Search::default();
        let result = found.go_on(u64::MAX, |rate| {
            let (asked_per_second, got_per_second, latency_micros) = (rate, rate as f64, 1.0);
            let step =
                Step { asked_per_second, got_per_second, latency_micros, faults: 0, passed: true };
            if rate > 4000 { Err("it died") } else { Ok(step) }
        });
        assert_eq!((result, found.highest_per_second), (Err("it died"), Some(4000)));
        assert_eq!(found.steps.len(), 3);
    }

    #[test]
    fn bounds_are_checked() {
        assert_eq!("99.9:2".parse(), Ok(Bound { percentile: 99.9, millis: 2.0 }));
        for wrong in ["99", "0:1", "101:1", "99:0", "99:-1", "99:inf", "a:b"] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
        }
    }
}
