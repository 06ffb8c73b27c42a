//! How callers of a client are run.

use super::results::{Failure, Load, Times};
use std::time::Duration;

/// How long a test of recovery lasts at most.
pub const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// Pause between operations of a test of recovery.
pub const RECOVERY_PAUSE: Duration = Duration::from_millis(1);

/// In a test of recovery, an operation that takes longer has met the outage as well: some clients wait for the server.
pub const OUTAGE_MIN: Duration = Duration::from_millis(250);

/// How callers of a client are run: as [`Threads`](super::Threads), or as the tasks of a runtime.
pub trait Harness {
    /// The client's name in lines of CSV.
    const NAME: &'static str;

    /// Whether the server can be reached.
    ///
    /// # Errors
    /// It cannot.
    fn check(&self) -> Result<(), Failure>;

    /// Callers begin together, and each does a set, a get, a set and a get. A round before the first one, which opens
    /// connections, is not reported.
    ///
    /// # Errors
    /// A value was wrong.
    fn times(&self, threads: usize, rounds: u16) -> Result<Times, Failure>;

    /// Callers set and get without a pause. A set before, which opens connections, is not reported.
    ///
    /// # Errors
    /// A value was wrong.
    fn load(&self, threads: usize, time: Duration) -> Result<Load, Failure>;

    /// CPU time in µs of a call that gets so many keys.
    ///
    /// # Errors
    /// A call failed, or a value was wrong.
    fn many(&self, keys: usize, calls: u32) -> Result<f64, Failure>;

    /// The time from the begin of the first operation that fails, or takes [`OUTAGE_MIN`], to the next success; nothing if
    /// there is none within [`RECOVERY_MAX`].
    ///
    /// # Errors
    /// There is no client.
    fn recovery(&self) -> Result<Option<Duration>, Failure>;
}
