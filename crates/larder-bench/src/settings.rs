//! What a run does, validated: what [`crate::arguments`] makes of a command line, and what goes into
//! every result file.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that shapes a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Whom to load.
    pub address: ServerAddress,
    /// In which dialect.
    pub protocol: Protocol,
    /// Encrypt.
    pub tls: Option<Tls>,
    /// Event loops, one a thread.
    pub threads: usize,
    /// Connections of each thread.
    pub clients: usize,
    /// Requests that a connection has under way at most.
    pub pipeline: usize,
    /// The closed loop sends another request as each answer comes, rather than a full pipeline when
    /// all are answered.
    pub sliding: bool,
    /// How many sets to how many gets.
    pub ratio: Ratio,
    /// Keys in one get; 1 for single ones.
    pub multi_get: usize,
    /// Which keys.
    pub keys: Keys,
    /// How much is stored under a key.
    pub data_size: DataSize,
    /// Values that do not compress.
    pub random_data: bool,
    /// Expiry of what is set, in seconds, drawn evenly from these two and what is between.
    pub expiry: Option<(u32, u32)>,
    /// When it ends.
    pub stop: Stop,
    /// Open loop: requests per second, of all connections together. None is the closed loop, in
    /// which a connection sends when an answer has come.
    pub rate: Option<u64>,
    /// Sets every key once before the clock starts.
    pub fill: bool,
    /// Values derive from their keys and are looked at.
    pub verify: bool,
    /// Equal seeds draw equal requests.
    pub seed: u64,
    /// Each connection draws its own requests rather than all the same.
    pub distinct_client_seed: bool,
}

impl Settings {
    /// All connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.threads * self.clients
    }
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerAddress {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over a unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// memcached's classic text.
    Text,
    /// memcached's meta commands.
    Meta,
    /// memcached's binary protocol.
    Binary,
    /// Redis, Valkey, Dragonfly, Garnet.
    Resp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Text => "text",
            Self::Meta => "meta",
            Self::Binary => "binary",
            Self::Resp => "resp",
        })
    }
}

/// How a connection is encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// Who vouches for the server; the server is not checked without.
    pub authority: Option<PathBuf>,
    /// The certificate shown to the server, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name expected in the server's certificate.
    pub server_name: Option<String>,
}

/// So many sets to so many gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ratio {
    /// Sets in a row.
    pub sets: u32,
    /// Gets that follow.
    pub gets: u32,
}

/// The keys of a run: a prefix and a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    /// What each begins with.
    pub prefix: String,
    /// The smallest number.
    pub minimum: u64,
    /// The largest.
    pub maximum: u64,
    /// How sets draw them.
    pub set: Pattern,
    /// How gets draw them.
    pub get: Pattern,
}

impl Keys {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.maximum - self.minimum + 1
    }
}

/// How key numbers are drawn from their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Evenly.
    Uniform,
    /// One after the other, each connection by itself.
    Sequential,
    /// One after the other, each connection in its own part of the range.
    Partitioned,
    /// Around a middle.
    Gaussian {
        /// The middle.
        median: f64,
        /// The width.
        deviation: f64,
    },
    /// The n-th most popular with a probability of n^-exponent.
    Zipf {
        /// 0 is uniform; 1 is common.
        exponent: f64,
    },
}

/// Bytes in a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataSize {
    /// Always so many.
    Fixed(usize),
    /// Evenly drawn from these and what is between.
    Range(usize, usize),
    /// Sizes with their weights.
    List(Vec<(usize, u32)>),
    /// exp of a normal distribution.
    LogNormal {
        /// Half of the values are smaller.
        median: f64,
        /// Of the logarithm.
        sigma: f64,
        /// None is larger.
        maximum: usize,
    },
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// Each connection has sent so many.
    Requests(u64),
    /// So much time has gone by.
    After(Duration),
}
