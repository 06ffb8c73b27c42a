//! `larder bench clients`: measures Larder's own client library as the drivers in `bench/clients` measure others.
//! docs/clients.md defines the measurements, and the arguments and lines that all drivers have in common.

mod caller;
mod item;
mod library;
mod report;
mod results;
mod threads;

use clap::{Args, ValueEnum};
pub use item::ThreadItem;
pub use library::{Larder, Library};
use report::Report;
pub use results::{Errors, Failure, Load, Times};
use std::io::{self, Write};
use std::time::Duration;
pub use threads::Threads;

/// Connections of a pool.
pub const POOL: usize = 64;
/// Numbers of keys of a get of several keys.
pub const MANY: [usize; 2] = [6, 100];
/// How long a test of recovery lasts at most.
pub const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Pause between operations of a test of recovery.
pub const RECOVERY_PAUSE: Duration = Duration::from_millis(1);
/// In a test of recovery, an operation that takes longer has met the outage as well: some clients wait for the server.
pub const OUTAGE_MIN: Duration = Duration::from_millis(250);

/// Measure Larder's client library: thread times, rate, CPU time, latency, and recovery from a server's end
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Address of the server, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:11211")]
    pub server: String,
    /// How threads get a connection for an operation
    #[arg(long, value_enum, default_value_t = Mode::Shared)]
    pub mode: Mode,
    /// Numbers of threads, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,63,64,128,256", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Vec<u16>,
    /// Size of each value in bytes
    #[arg(long, default_value_t = 19, value_parser = clap::value_parser!(u32).range(19..=1_000_000))]
    pub value_bytes: u32,
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', default_value = "times,load,many")]
    pub measure: Vec<Measure>,
    /// Repetitions of `times`, after one that is not reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Part of all keys, so that runs with different seeds have keys of their own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..100_000))]
    pub seed: u32,
    /// Duration of `load` in seconds, for each number of threads
    #[arg(long, default_value = "1", value_parser = secs)]
    pub secs: Duration,
    /// Number of calls of `many`, for each number of keys
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub calls: u32,
    /// Print lines of CSV instead of tables
    #[arg(long)]
    pub csv: bool,
}

/// How threads get a connection for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// All threads share connections, as the client does by default
    Shared,
    /// From a pool of 64 that all threads share
    Pool,
    /// A new connection for each operation
    None,
    /// Each thread has one to itself
    Thread,
}

/// The connections of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Calls share them, and the client says how many there are. One that knows no such has a pool of [`POOL`].
    Shared,
    /// Each call has one to itself, of at most so many.
    Pool(usize),
}

impl Connections {
    /// How many there are at most, for a client whose calls share none.
    #[must_use]
    pub fn max(self) -> usize {
        match self {
            Self::Shared => POOL,
            Self::Pool(max) => max,
        }
    }
}

impl Mode {
    /// The connections of a client that all threads use, if there is one.
    #[must_use]
    pub fn of_all(self) -> Option<Connections> {
        match self {
            Self::Shared => Some(Connections::Shared),
            Self::Pool => Some(Connections::Pool(POOL)),
            Self::None | Self::Thread => None,
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// The time that a thread needs for a set, a get, a set and a get, when all begin at once
    Times,
    /// Operations per second, CPU time and latency while all threads set and get without a pause
    Load,
    /// CPU time of a call that gets 6 or 100 keys, in one thread
    Many,
    /// How long operations fail: the server has to be ended and started again meanwhile
    Recovery,
}

/// Why `larder bench clients` failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first operation of all failed.
    #[error("{0}")]
    Client(String),
    /// A get returned something else than what was set.
    #[error(
        "the value of {key} is {found}, but {expected} was stored there last: {hint}",
        hint = "the client or the server is wrong, or another process uses these keys (--seed)"
    )]
    WrongValue {
        /// The key.
        key: String,
        /// The begin of the value that was stored.
        expected: String,
        /// What was returned.
        found: String,
    },
    /// No operation failed, or none succeeded afterwards.
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

/// How callers of a client are run: as [`Threads`], or as the tasks of a runtime.
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

/// Measures what `arguments` ask for, and writes the results to `out`.
///
/// # Errors
/// The server cannot be reached, a value was wrong, or the results cannot be written.
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

fn secs(text: &str) -> Result<Duration, String> {
    let secs = text.parse().ok().filter(|secs| (0.01..=3600.0).contains(secs));
    secs.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.01 to 3600 seconds".to_owned())
}
