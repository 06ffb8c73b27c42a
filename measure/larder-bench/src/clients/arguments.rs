//! The command line of `larder bench clients`.

use clap::{Args, ValueEnum};
use std::time::Duration;

/// Connections of a pool.
pub const POOL: usize = 64;

/// Measure Larder's client library: thread times, rate, CPU time, latency, and recovery from a server's end
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Address of the server, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:11211")]
    pub server: String,
    /// How threads get a connection for an operation
    #[arg(long, value_enum, default_value_t = Mode::Shared)]
    pub mode: Mode,
    /// Numbers of threads, each measured separately
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,63,64,128,256", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Vec<u16>,
    /// Size of each value in bytes
    #[arg(long, default_value_t = 19, value_parser = clap::value_parser!(u32).range(19..=1_000_000))]
    pub value_bytes: u32,
    /// The measurements to make
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

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// The time that a thread needs for a set, a get, a set and a get, when all begin at once
    Times,
    /// Operations per second, CPU time and latency while all threads set and get without a pause
    Load,
    /// CPU time of a call that gets 6 or 100 keys, in one thread
    Many,
    /// Time during which operations fail while you stop and restart the server
    Recovery,
}

fn secs(text: &str) -> Result<Duration, String> {
    let secs = text.parse().ok().filter(|secs| (0.01..=3600.0).contains(secs));
    secs.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.01 to 3600 seconds".to_owned())
}
