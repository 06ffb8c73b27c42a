//! The validated settings of a run. [`crate::arguments`] creates them from a command line, and JSON
//! result files contain them.

use crate::words::split;
use larder_target::{Protocol, ServerAddress};
use larder_trace::Operation;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// One or several servers. Each client has a connection to each of them.
    pub servers: Vec<NamedServer>,
    /// Distribution of keys over several servers.
    pub distribution: Distribution,
    /// The protocol of all requests.
    pub protocol: Protocol,
    /// The login of each connection; `None` if connections do not log in. Result files do not
    /// contain it.
    #[serde(skip)]
    pub login: Option<Login>,
    /// TLS; `None` for plaintext connections.
    pub tls: Option<Tls>,
    /// Whether to record per-second statistics of each connection.
    pub client_stats: bool,
    /// Number of requests after which each connection reconnects; `None` for no such reconnects.
    pub reconnect_interval: Option<u64>,
    /// Whether lost connections reconnect.
    #[serde(default)]
    pub reconnect_on_error: bool,
    /// Schedule for opening connections; `None` if all are open from the start.
    pub steps: Option<Steps>,
    /// Number of load threads, each with an event loop.
    pub threads: usize,
    /// Number of clients per thread, each with one connection to each server.
    pub clients: usize,
    /// Maximum number of requests that a client has outstanding.
    pub pipeline: usize,
    /// Whether a client sends one request for each reply. Otherwise, it sends a full pipeline when
    /// all requests are answered. `larder bench` sets this for `--sliding`, for bursts and for a
    /// trace with a speed.
    pub sliding: bool,
    /// The ratio in which sets and gets alternate.
    pub ratio: Ratio,
    /// Number of keys in each get.
    pub multi_get: usize,
    /// Custom commands, which replace sets and gets.
    pub commands: Vec<CustomCommand>,
    /// Key spaces. Each request chooses a key space at random, weighted by the shares of the key
    /// spaces. The ratio, keys, value sizes and expiry of a key space replace those of the
    /// settings. Empty for a run without key spaces.
    #[serde(default)]
    pub key_spaces: Vec<KeySpace>,
    /// Replay of a trace; `None` for generated requests.
    #[serde(default)]
    pub trace: Option<TraceReplay>,
    /// The keys and their selection.
    pub keys: Keys,
    /// The sizes of values.
    pub data_size: DataSize,
    /// Whether values are random bytes, which do not compress.
    pub random_data: bool,
    /// Minimum and maximum TTL of sets in seconds. TTLs are uniformly distributed between them.
    /// `None` for no expiry.
    pub expiry: Option<(u32, u32)>,
    /// The end of the run.
    pub stop: Stop,
    /// Open loop: requests per second of all clients together. `None` for a trace and for a closed
    /// loop. In a closed loop, replies determine when a client sends.
    pub rate: Option<u64>,
    /// Distribution of an open loop's requests over time.
    pub arrivals: Arrivals,
    /// Whether to set every key at least once before the measurement.
    pub fill: bool,
    /// Whether to derive values from their keys, and to compare returned values with the derived
    /// values.
    pub verify: bool,
    /// The run ends after this time without any reply. A timed run also waits up to this time for
    /// outstanding replies at its end. This time also limits each login and, for connections that
    /// are opened during the run, each TLS handshake.
    pub timeout: Duration,
    /// Maximum time to establish a connection. `None` for the system's limit before the run and for
    /// `timeout` during the run.
    pub connection_timeout: Option<Duration>,
    /// Seed of the random numbers. Runs with the same seed send the same requests.
    pub seed: u64,
    /// Whether each client has its own seed, so that clients send different requests.
    pub distinct_client_seed: bool,
}

impl Settings {
    /// Returns the total number of clients on all threads.
    #[must_use]
    pub fn all_clients(&self) -> usize {
        self.threads * self.clients
    }

    /// Returns whether requests have scheduled times, from which latency counts.
    #[must_use]
    pub fn is_open_loop(&self) -> bool {
        self.rate.is_some() || self.trace.as_ref().is_some_and(|trace| trace.speed.is_some())
    }

    /// Returns the total number of connections of all clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.all_clients() * self.servers.len()
    }

    /// Returns whether keys are distributed over several servers.
    #[must_use]
    pub fn has_several_servers(&self) -> bool {
        self.servers.len() > 1
    }

    /// Returns the names of the result rows, except rows with sums. Without key spaces or a trace,
    /// these are `set`, `get` and the custom commands. With key spaces, they are the sets and the
    /// gets of each key space; with a trace, its operations.
    #[must_use]
    pub fn command_names(&self) -> Vec<String> {
        if !self.key_spaces.is_empty() {
            let of_space = |space: &KeySpace| ["set", "get"].map(|name| space.row(name));
            return self.key_spaces.iter().flat_map(of_space).collect();
        }
        if self.trace.is_some() {
            return Operation::ALL.map(|operation| operation.name().to_owned()).into();
        }
        let mut names = vec!["set".to_owned(), "get".to_owned()];
        for command in &self.commands {
            let name = command.name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// A server with its name on the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedServer {
    /// Host name or IP address as on the command line, or the path of a unix socket. `ketama` and
    /// `ketama-weighted` derive the points of the ring from this name and from the port.
    pub host: String,
    /// The resolved address.
    pub address: ServerAddress,
}

impl NamedServer {
    /// Returns a server whose name is its address.
    #[must_use]
    pub fn at(address: ServerAddress) -> Self {
        let host = match &address {
            ServerAddress::Tcp(address) => address.ip().to_string(),
            ServerAddress::Unix(path) => path.display().to_string(),
        };
        Self { host, address }
    }
}

/// Distribution of keys over several servers. All algorithms are from libmemcached. A server's
/// number is its index in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// The one-at-a-time hash of the key modulo the number of servers, libmemcached's default
    #[default]
    Modula,
    /// A ring of 100 points of each server, with the one-at-a-time hash
    /// (`MEMCACHED_BEHAVIOR_KETAMA`)
    Ketama,
    /// A ring of 160 points of each server (156 for some numbers of servers), with MD5, as in
    /// libketama (`MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED` with equal weights)
    KetamaWeighted,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Modula => "modula",
            Self::Ketama => "ketama",
            Self::KetamaWeighted => "ketama-weighted",
        })
    }
}

/// Settings for replaying a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceReplay {
    /// The trace's file.
    pub file: PathBuf,
    /// Open loop: replay speed as a multiple of the recorded speed. TTLs are divided by this
    /// multiple, but are at least a second. `None` for a closed loop, in which connections send
    /// when their requests are answered.
    pub speed: Option<f64>,
    /// The request that follows a missed get; `None` selects the default for the trace's form.
    pub on_miss: Option<OnMiss>,
    /// Maximum total number of recorded requests on all connections; `None` for no maximum.
    pub requests: Option<u64>,
}

/// The request that follows a missed get of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnMiss {
    /// A set with the recorded size and TTL.
    Set,
    /// No request: the next recorded request follows.
    Nothing,
}

/// A group of similar items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeySpace {
    /// Name of the key space in the results: letters, digits, `_` and `-`.
    pub name: String,
    /// Weight of the key space when a request chooses a key space at random.
    pub share: u32,
    /// The ratio in which sets and gets alternate.
    pub ratio: Ratio,
    /// The keys and their selection.
    pub keys: Keys,
    /// The sizes of values.
    pub data_size: DataSize,
    /// Minimum and maximum TTL of sets in seconds. TTLs are uniformly distributed between them.
    /// `None` for no expiry.
    pub expiry: Option<(u32, u32)>,
}

impl KeySpace {
    /// Returns the name of the result row for a command on this key space.
    #[must_use]
    pub fn row(&self, command: &str) -> String {
        format!("{}-{command}", self.name)
    }
}

/// Distribution of an open loop's requests over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At even intervals.
    #[default]
    Fixed,
    /// At random, as a Poisson process of many independent clients.
    Poisson,
    /// Like memtier_benchmark: all connections start a burst at once, at most 50 times per second.
    Bursts,
}

/// The credentials of all connections.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user; `None` for a login with a password only, which RESP permits.
    pub user: Option<String>,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The TLS settings of all connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// File with the CA certificates that verify the server's certificate. Without it, any
    /// certificate is accepted.
    pub authority: Option<PathBuf>,
    /// Files with the client certificate and its private key; `None` for no client certificate.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The host name that the server's certificate must contain; `None` for the server's IP
    /// address, or `localhost` on a unix socket.
    pub server_name: Option<String>,
}

/// Schedule for opening connections during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// Number of clients per thread that are connected at the start.
    pub start: usize,
    /// Number of clients per thread that connect at each step.
    pub step: usize,
    /// Time between steps.
    pub every: Duration,
}

/// A custom command. `__key__` stands for a key, and `__data__` for a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomCommand {
    /// The command with its arguments.
    pub line: String,
    /// Number of times that a client sends the command in a row.
    pub ratio: u32,
    /// Selection of the command's keys.
    pub pattern: Pattern,
}

impl CustomCommand {
    /// Returns the first word in lower case.
    #[must_use]
    pub fn name(&self) -> String {
        let name = split(&self.line).and_then(|words| words.into_iter().next());
        String::from_utf8_lossy(&name.unwrap_or_default()).to_ascii_lowercase()
    }
}

/// The ratio of sets to gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ratio {
    /// Number of sets in a row.
    pub sets: u32,
    /// Number of gets in a row, after these sets.
    pub gets: u32,
}

impl Ratio {
    /// Returns whether the request at `position` of the cycle is a set, and advances `position` to
    /// the next request.
    #[inline]
    pub(crate) fn take_turn(self, position: &mut u32) -> bool {
        let is_set = *position < self.sets;
        *position = if *position + 1 == self.sets + self.gets { 0 } else { *position + 1 };
        is_set
    }
}

/// The keys of a run. A key consists of a prefix and a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    /// The prefix of all keys.
    pub prefix: String,
    /// The smallest number.
    pub minimum: u64,
    /// The largest number.
    pub maximum: u64,
    /// Selection of keys in sets.
    pub set: Pattern,
    /// Selection of keys in gets.
    pub get: Pattern,
}

impl Keys {
    /// Returns the number of keys in the range. The validation of options ensures that it is below
    /// 2^64.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.maximum - self.minimum + 1
    }
}

/// Selection of key numbers from their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Uniformly at random.
    Uniform,
    /// In order; each connection repeats the full range.
    Sequential,
    /// In order; each connection repeats its own part of the range.
    Partitioned,
    /// Normally distributed, limited to the range.
    Gaussian {
        /// Median of the key numbers.
        median: f64,
        /// Standard deviation of the key numbers.
        deviation: f64,
    },
    /// Zipf: the probability of the n-th key is proportional to n^-exponent.
    Zipf {
        /// 0 is uniform; values around 1 are typical of caches.
        exponent: f64,
    },
}

/// The distribution of value sizes, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataSize {
    /// One size for all values.
    Fixed(usize),
    /// Uniformly distributed between a minimum and a maximum.
    Range(usize, usize),
    /// Growing linearly with the number of the key.
    ByKey {
        /// Value size of the first key.
        minimum: usize,
        /// Value size of the last key.
        maximum: usize,
        /// The first and the last key number.
        keys: (u64, u64),
    },
    /// Sizes with the weights by which they are chosen.
    List(Vec<(usize, u32)>),
    /// Log-normally distributed.
    LogNormal {
        /// Median of the sizes.
        median: f64,
        /// Standard deviation of the sizes' logarithms.
        sigma: f64,
        /// Maximum in bytes. Larger sizes are reduced to it.
        maximum: usize,
    },
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// After each client has sent this number of requests.
    Requests(u64),
    /// After this time.
    After(Duration),
    /// At the end of the trace.
    EndOfTrace,
}
