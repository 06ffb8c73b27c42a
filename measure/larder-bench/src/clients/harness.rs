//! Runs the callers of a client.

use super::results::{Failure, Load, Times};
use std::time::Duration;

/// Maximum duration of a recovery test.
pub const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// Pause between the operations of a recovery test.
pub const RECOVERY_PAUSE: Duration = Duration::from_millis(1);

/// In a recovery test, an operation that takes at least this long is part of the outage. Some
/// clients wait for the server instead of failing.
pub const OUTAGE_MIN: Duration = Duration::from_millis(250);

/// Measures a client with concurrent callers. Callers are threads ([`Threads`](super::Threads)) or
/// tasks of an async runtime.
pub trait Harness {
    /// The client's name in CSV lines.
    const NAME: &'static str;

    /// Checks that the server answers.
    ///
    /// # Errors
    /// The client cannot be created, or a get failed.
    fn check(&self) -> Result<(), Failure>;

    /// Measures callers that start together. In each round, each caller does a set, a get, a set
    /// and a get. The first round opens the connections, and `rounds` further rounds follow. The
    /// times of the first round are not reported, but its errors are.
    ///
    /// # Errors
    /// The client cannot be created, or a value was wrong.
    fn times(&self, threads: usize, rounds: u16) -> Result<Times, Failure>;

    /// Measures a load: for `time`, all callers set and get without a pause. Before the load, each
    /// caller does a set that opens its connection. The latency of this set is not reported, but
    /// its error is.
    ///
    /// # Errors
    /// The client cannot be created, or a value was wrong.
    fn load(&self, threads: usize, time: Duration) -> Result<Load, Failure>;

    /// Returns the mean CPU time in µs of a get with `keys` keys, over `calls` gets.
    ///
    /// # Errors
    /// The client cannot be created, a call failed, or a value was wrong.
    fn many(&self, keys: usize, calls: u32) -> Result<f64, Failure>;

    /// Returns the duration of a server outage. The outage begins at the start of the first
    /// operation that fails or takes at least [`OUTAGE_MIN`]. It ends when an operation succeeds:
    /// the slow operation itself, or a later one. Returns `None` if no outage ends within
    /// [`RECOVERY_MAX`].
    ///
    /// # Errors
    /// The client cannot be created.
    fn recovery(&self) -> Result<Option<Duration>, Failure>;
}
