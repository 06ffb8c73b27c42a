//! Runs the callers of a client.

use super::results::{Failure, Load, Times};
use std::time::Duration;

/// Maximum duration of a test of recovery.
pub const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// Pause between operations of a test of recovery.
pub const RECOVERY_PAUSE: Duration = Duration::from_millis(1);

/// In a test of recovery, an operation that takes at least this time counts as part of the outage,
/// because some clients wait for the server instead of failing.
pub const OUTAGE_MIN: Duration = Duration::from_millis(250);

/// Runs the callers of a client, as [`Threads`](super::Threads) or as the tasks of a runtime.
pub trait Harness {
    /// The client's name in CSV lines.
    const NAME: &'static str;

    /// Checks that the server answers.
    ///
    /// # Errors
    /// The client cannot be created, or a get failed.
    fn check(&self) -> Result<(), Failure>;

    /// Measures the times of callers that start together. In each round, each caller does a set, a
    /// get, a set and a get. The first round opens the connections, and `rounds` further rounds
    /// follow. The times of the first round are not reported, but its errors are.
    ///
    /// # Errors
    /// The client cannot be created, or a value was wrong.
    fn times(&self, threads: usize, rounds: u16) -> Result<Times, Failure>;

    /// Measures the load of all callers, which set and get without a pause for `time`. Before the
    /// load, a set opens the connections. Its latency is not reported, but its error is.
    ///
    /// # Errors
    /// The client cannot be created, or a value was wrong.
    fn load(&self, threads: usize, time: Duration) -> Result<Load, Failure>;

    /// Returns the mean CPU time in µs of a get of `keys` keys, over `calls` gets.
    ///
    /// # Errors
    /// The client cannot be created, a call failed, or a value was wrong.
    fn many(&self, keys: usize, calls: u32) -> Result<f64, Failure>;

    /// Returns the duration of an outage of the server. The outage begins at the start of the first
    /// operation that fails or takes at least [`OUTAGE_MIN`]. It ends at the end of the next
    /// operation that succeeds, which can be the slow operation itself. `None` if there is no such
    /// success within [`RECOVERY_MAX`].
    ///
    /// # Errors
    /// The client cannot be created.
    fn recovery(&self) -> Result<Option<Duration>, Failure>;
}
