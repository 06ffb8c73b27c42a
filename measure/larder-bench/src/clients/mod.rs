//! `larder bench clients`: measures Larder's client library, as the drivers in
//! `measure/bench/clients` measure other libraries. docs/client-benchmarks.md defines the
//! measurements, the arguments and the output lines of all drivers.

mod arguments;
mod caller;
mod harness;
mod item;
mod library;
mod report;
mod results;
mod threads;

pub use arguments::{Arguments, Connections, Measure, Mode, POOL};
pub use harness::{Harness, OUTAGE_MIN, RECOVERY_MAX, RECOVERY_PAUSE};
pub use item::ThreadItem;
pub use library::{Larder, Library};
use report::Report;

pub use results::{Errors, Failure, Load, Times};
use std::io::{self, Write};
use std::time::Duration;

pub use threads::Threads;

/// Numbers of keys per get that [`Measure::Many`] measures.
pub const MANY: [usize; 2] = [6, 100];

/// Errors of `larder bench clients`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first get, the creation of a client before a measurement, or an operation of
    /// [`Measure::Many`] failed. The measurement ends.
    #[error("{0}")]
    Client(String),
    /// A get did not return the stored value.
    #[error(
        "the value of {key} is {found}, but {expected} was stored there last: {hint}",
        hint = "the client or the server is wrong, or another process uses these keys (--seed)"
    )]
    WrongValue {
        /// The key.
        key: String,
        /// The start of the stored value.
        expected: String,
        /// The start of the returned value, or `missing`.
        found: String,
    },
    /// A recovery test of this duration observed no recovery. Either no operation failed or was
    /// slow, or all later operations failed.
    #[error("within {0:?}, no operation succeeded after one that had failed")]
    NoRecovery(Duration),
    /// The results could not be written.
    #[error("cannot write the results: {0}")]
    Output(#[from] io::Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Client(error) => Self::Client(error),
            Failure::WrongValue { key, expected, found } => {
                Self::WrongValue { key, expected, found }
            }
        }
    }
}

/// Makes the measurements that `arguments` select, and writes the results to `out`.
///
/// # Errors
/// The server cannot be reached, a value was wrong, an operation of [`Measure::Many`] failed, a
/// recovery test observed no recovery, or the results cannot be written.
pub fn measure<H: Harness>(
    harness: &H,
    arguments: &Arguments,
    out: &mut dyn Write,
) -> Result<(), Error> {
    harness.check()?;
    let mut report = Report::new(H::NAME, arguments, out);
    let threads = || arguments.threads.iter().map(|threads| usize::from(*threads));
    for measure in &arguments.measure {
        match measure {
            Measure::Times => {
                for threads in threads() {
                    report.times(threads, &harness.times(threads, arguments.rounds)?)?;
                }
            }
            Measure::Load => {
                for threads in threads() {
                    report.load(threads, &harness.load(threads, arguments.secs)?)?;
                }
            }
            Measure::Many => {
                for keys in MANY {
                    report.many(keys, harness.many(keys, arguments.calls)?)?;
                }
            }
            Measure::Recovery => {
                report.ready()?;
                report.recovered(harness.recovery()?.ok_or(Error::NoRecovery(RECOVERY_MAX))?)?;
            }
        }
    }
    Ok(())
}
