//! Results of measurements.

use std::fmt::Display;
use std::time::Duration;

/// The failure of an operation.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The client returned an error. `times` and `load` count the error and continue. `recovery`
    /// continues without counting the error.
    Client(String),
    /// A get returned no value, or a value other than the stored value. The run ends.
    WrongValue {
        /// The key.
        key: String,
        /// The start of the stored value.
        expected: String,
        /// The start of the returned value, or `missing`.
        found: String,
    },
}

impl Failure {
    /// Converts an error of the client library.
    pub fn client(error: impl Display) -> Self {
        Self::Client(error.to_string())
    }
}

/// Operations that failed.
#[derive(Debug, Default)]
pub struct Errors {
    /// Number of failed operations.
    pub count: u64,
    /// The client's message for the first failed operation; `None` if no operation failed.
    pub first: Option<String>,
}

impl Errors {
    /// Counts the error of a failed operation. Returns whether the operation succeeded.
    ///
    /// # Errors
    /// A value was wrong.
    pub fn count(&mut self, outcome: Result<(), Failure>) -> Result<bool, Failure> {
        match outcome {
            Ok(()) => Ok(true),
            Err(Failure::Client(error)) => {
                self.count += 1;
                self.first.get_or_insert(error);
                Ok(false)
            }
            Err(wrong) => Err(wrong),
        }
    }

    /// Adds the errors of another caller.
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.first = self.first.take().or(other.first);
    }
}

/// The times of threads that started together.
#[derive(Debug, Default)]
pub struct Times {
    /// The measured times, each with its round and thread. A thread with a failed operation has no
    /// entry for that round.
    pub times: Vec<(u16, usize, Duration)>,
    /// Operations that failed.
    pub errors: Errors,
}

/// The results of a load without pauses.
#[derive(Debug)]
pub struct Load {
    /// Successful operations per second.
    pub per_second: f64,
    /// CPU time of this process in µs per successful operation.
    pub cpu_micros: f64,
    /// Latencies of the successful operations, in ascending order.
    latencies: Vec<Duration>,
    /// Operations that failed.
    pub errors: Errors,
}

impl Load {
    /// Combines the latencies and errors of all callers. `took` is the duration of the load, and
    /// `cpu_secs` is the CPU time of this process.
    ///
    /// # Errors
    /// A value was wrong.
    pub fn of(
        callers: impl IntoIterator<Item = Result<(Vec<Duration>, Errors), Failure>>,
        took: Duration,
        cpu_secs: f64,
    ) -> Result<Self, Failure> {
        let (mut latencies, mut errors) = (Vec::new(), Errors::default());
        for caller in callers {
            let (of_caller, failed) = caller?;
            latencies.extend(of_caller);
            errors.add(failed);
        }
        latencies.sort_unstable();
        let operations = latencies.len() as f64;
        let cpu_micros = cpu_secs * 1e6 / operations.max(1.0);
        Ok(Self { per_second: operations / took.as_secs_f64(), cpu_micros, latencies, errors })
    }

    /// Returns the latency in µs at `quantile` (0.5 is the median), or 0 if no operation succeeded.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the rank is an index"
    )]
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> f64 {
        let rank = (quantile * self.latencies.len() as f64).ceil() as usize;
        self.latencies.get(rank.max(1) - 1).map_or(0.0, |latency| micros(*latency))
    }

    /// Returns the mean latency in µs, or 0 if no operation succeeded.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: Duration = self.latencies.iter().sum();
        micros(sum) / self.latencies.len().max(1) as f64
    }
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
