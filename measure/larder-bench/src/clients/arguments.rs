//! The command line of `larder bench clients`.

use clap::{Args, ValueEnum};
use std::time::Duration;

/// Maximum number of connections in a pool.
pub const POOL: usize = 64;

/// Measure Larder's client library: thread times, rate, CPU time, latency, and recovery from an
/// outage
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Address of the server, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:11211")]
    pub server: String,
    /// Connections of the threads
    #[arg(long, value_enum, default_value_t = Mode::Shared)]
    pub mode: Mode,
    /// Numbers of threads; each is measured separately
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
    /// Part of all keys, so that runs with different seeds use different keys
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..100_000))]
    pub seed: u32,
    /// Duration of `load` in seconds, for each number of threads
    #[arg(long, default_value = "1", value_parser = secs)]
    pub secs: Duration,
    /// Number of calls to `many`, for each number of keys
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub calls: u32,
    /// Print lines of CSV instead of tables
    #[arg(long)]
    pub csv: bool,
}

/// How the threads use connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// All threads share connections, as the client does by default
    Shared,
    /// From a pool of 64 that all threads share
    Pool,
    /// A new connection for each operation
    None,
    /// One connection per thread
    Thread,
}

/// How the calls of a client use connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Calls share connections. The client chooses their number. A client that cannot share
    /// connections uses a pool of up to [`POOL`] connections.
    Shared,
    /// Each call uses one connection exclusively, from a pool with this maximum.
    Pool(usize),
}

impl Connections {
    /// Returns the maximum pool size for a client that cannot share connections.
    #[must_use]
    pub fn max(self) -> usize {
        match self {
            Self::Shared => POOL,
            Self::Pool(max) => max,
        }
    }
}

impl Mode {
    /// Returns how the shared client of all threads uses connections, or `None` if the threads
    /// share no client in this mode.
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
    /// Time of a thread for a set, a get, a set and a get, when all threads start at once
    Times,
    /// Operations per second, CPU time and latency while all threads set and get without a pause
    Load,
    /// CPU time of a get of 6 and of 100 keys, in one thread
    Many,
    /// Time during which operations fail while you stop and restart the server
    Recovery,
}

fn secs(text: &str) -> Result<Duration, String> {
    let secs = text.parse().ok().filter(|secs| (0.01..=3600.0).contains(secs));
    secs.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.01 to 3600 seconds".to_owned())
}
