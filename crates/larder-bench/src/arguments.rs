//! The command line of `larder bench`. Where memtier_benchmark has an option, its names are taken,
//! so that published command lines run as they are.

use crate::settings::{
    DataSize, Keys, Pattern, Protocol, Ratio, ServerAddress, Settings, Stop, Tls,
};
use clap::Args;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What can be typed. Sizes are bytes, times seconds.
#[derive(Args, Clone, Debug)]
#[command(disable_help_flag = true, args_override_self = true)]
pub struct Arguments {
    /// Show this help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,

    /// Server's name or address
    #[arg(short = 's', long = "server", short_alias = 'h', alias = "host", default_value = "localhost", help_heading = CONNECTION)]
    pub server: String,
    /// Server's port; 6379 for RESP unless given
    #[arg(short, long, help_heading = CONNECTION)]
    pub port: Option<u16>,
    /// Unix socket, rather than TCP
    #[arg(short = 'S', long, help_heading = CONNECTION)]
    pub unix_socket: Option<PathBuf>,
    /// text, meta, binary or resp; memtier's names too
    #[arg(short = 'P', long, default_value = "text", value_parser = protocol, help_heading = CONNECTION)]
    pub protocol: Protocol,
    /// Encrypt
    #[arg(long, help_heading = CONNECTION)]
    pub tls: bool,
    /// Client's certificate (PEM)
    #[arg(long, requires_all = ["tls", "key"], help_heading = CONNECTION)]
    pub cert: Option<PathBuf>,
    /// Client's private key (PEM)
    #[arg(long, requires = "cert", help_heading = CONNECTION)]
    pub key: Option<PathBuf>,
    /// Certificates that vouch for the server (PEM)
    #[arg(long, requires = "tls", help_heading = CONNECTION)]
    pub cacert: Option<PathBuf>,
    /// Don't check the server's certificate; so without --cacert
    #[arg(long, requires = "tls", conflicts_with = "cacert", help_heading = CONNECTION)]
    pub tls_skip_verify: bool,
    /// Name expected in the server's certificate
    #[arg(long, requires = "tls", help_heading = CONNECTION)]
    pub sni: Option<String>,

    /// Requests of each connection, or `allkeys`
    #[arg(short = 'n', long, default_value = "10000", conflicts_with = "test_time", help_heading = LOAD)]
    pub requests: Requests,
    /// Run for so many seconds rather than so many requests
    #[arg(long, visible_alias = "duration", value_parser = seconds, help_heading = LOAD)]
    pub test_time: Option<Duration>,
    /// Connections of each thread
    #[arg(short, long, default_value_t = 50, value_parser = at_least_one, help_heading = LOAD)]
    pub clients: usize,
    /// Threads
    #[arg(short, long, default_value_t = 4, value_parser = at_least_one, help_heading = LOAD)]
    pub threads: usize,
    /// Requests that a connection sends together; the next go when all are answered
    #[arg(long, default_value_t = 1, value_parser = at_least_one, help_heading = LOAD)]
    pub pipeline: usize,
    /// Keep the pipeline full, as memtier does: another request goes as each answer comes
    #[arg(long, conflicts_with_all = ["rate", "rate_limiting"], help_heading = LOAD)]
    pub sliding: bool,
    /// Sets to gets
    #[arg(long, default_value = "1:10", value_parser = ratio, help_heading = LOAD)]
    pub ratio: Ratio,
    /// Keys in one get
    #[arg(long, alias = "multi-key-get", default_value_t = 1, help_heading = LOAD)]
    pub multi_get: usize,
    /// Open loop: requests per second of all connections together, sent when they are due
    #[arg(long, conflicts_with = "rate_limiting", help_heading = LOAD)]
    pub rate: Option<u64>,
    /// The same, for each connection
    #[arg(long, help_heading = LOAD)]
    pub rate_limiting: Option<u64>,
    /// Set every key once before the clock starts
    #[arg(long, help_heading = LOAD)]
    pub fill: bool,
    /// Runs; medians are reported
    #[arg(short = 'x', long = "run-count", visible_alias = "runs", default_value_t = 1, value_parser = at_least_one, help_heading = LOAD)]
    pub run_count: usize,
    /// Equal seeds draw equal requests
    #[arg(long, default_value_t = 1, help_heading = LOAD)]
    pub seed: u64,
    /// A seed from the clock
    #[arg(long, help_heading = LOAD)]
    pub randomize: bool,
    /// Connections draw different requests
    #[arg(long, help_heading = LOAD)]
    pub distinct_client_seed: bool,

    /// What keys begin with
    #[arg(long, default_value = "memtier-", help_heading = OBJECTS)]
    pub key_prefix: String,
    /// Smallest key number
    #[arg(long, default_value_t = 0, help_heading = OBJECTS)]
    pub key_minimum: u64,
    /// Largest key number
    #[arg(long, default_value_t = 10_000_000, help_heading = OBJECTS)]
    pub key_maximum: u64,
    /// Of sets and gets: R uniform random, Z Zipf, G Gaussian, S sequential, P partitioned
    #[arg(long, default_value = "R:R", help_heading = OBJECTS)]
    pub key_pattern: String,
    /// Of G; a sixth of the range unless given
    #[arg(long, help_heading = OBJECTS)]
    pub key_stddev: Option<f64>,
    /// Of G; the middle of the range unless given
    #[arg(long, help_heading = OBJECTS)]
    pub key_median: Option<f64>,
    /// Of Z
    #[arg(long, default_value_t = 1.0, help_heading = OBJECTS)]
    pub key_zipf_exp: f64,
    /// Bytes in a value
    #[arg(short = 'd', long, default_value_t = 32, group = "size", help_heading = OBJECTS)]
    pub data_size: usize,
    /// Sizes drawn evenly from MIN-MAX
    #[arg(long, value_name = "MIN-MAX", value_parser = range::<usize>, conflicts_with = "data_size", help_heading = OBJECTS)]
    pub data_size_range: Option<(usize, usize)>,
    /// Sizes with weights
    #[arg(long, value_name = "SIZE:WEIGHT,...", conflicts_with_all = ["data_size", "data_size_range"], help_heading = OBJECTS)]
    pub data_size_list: Option<String>,
    /// Log-normal sizes
    #[arg(long, value_name = "MEDIAN:SIGMA[:MAX]", conflicts_with_all = ["data_size", "data_size_range", "data_size_list"], help_heading = OBJECTS)]
    pub data_size_lognormal: Option<String>,
    /// Values that do not compress
    #[arg(short = 'R', long, help_heading = OBJECTS)]
    pub random_data: bool,
    /// Expiries drawn evenly from MIN-MAX seconds
    #[arg(long, value_name = "MIN-MAX", value_parser = range::<u32>, help_heading = OBJECTS)]
    pub expiry_range: Option<(u32, u32)>,
    /// Values derive from their keys and are looked at; wrong ones are counted
    #[arg(long, help_heading = OBJECTS)]
    pub verify: bool,
    /// Keys are always made up: memtier needs this said when it imports data
    #[arg(long, hide = true)]
    pub generate_keys: bool,

    /// The server's process, to account its CPU; found by its socket unless given
    #[arg(long, help_heading = OUTPUT)]
    pub pid: Option<i32>,
    /// Show every setting first
    #[arg(long, help_heading = OUTPUT)]
    pub show_config: bool,
    /// Don't print the latency histogram
    #[arg(long, help_heading = OUTPUT)]
    pub hide_histogram: bool,
    /// Percentiles in the table
    #[arg(long, default_value = "50,90,99,99.9,99.99", value_delimiter = ',', help_heading = OUTPUT)]
    pub print_percentiles: Vec<f64>,
    /// Write the table here rather than to the standard output
    #[arg(short = 'o', long, help_heading = OUTPUT)]
    pub out_file: Option<PathBuf>,
    /// Write everything as JSON
    #[arg(long, help_heading = OUTPUT)]
    pub json_out_file: Option<PathBuf>,
    /// Write histograms to files (.hgrm and HDR logs) whose names begin so
    #[arg(long, help_heading = OUTPUT)]
    pub hdr_file_prefix: Option<String>,
    /// Show each run, not only the medians
    #[arg(long, help_heading = OUTPUT)]
    pub print_all_runs: bool,
    /// No live progress
    #[arg(short, long, help_heading = OUTPUT)]
    pub quiet: bool,
}

const CONNECTION: &str = "Connection";
const LOAD: &str = "Load";
const OBJECTS: &str = "Objects";
const OUTPUT: &str = "Output";

/// How many requests a connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// So many.
    Count(u64),
    /// As many as there are keys (in its part of them, if they are partitioned).
    AllKeys,
}

impl FromStr for Requests {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "allkeys" {
            return Ok(Self::AllKeys);
        }
        match text.parse() {
            Ok(count) if count > 0 => Ok(Self::Count(count)),
            _ => Err("neither a positive number nor `allkeys`".to_owned()),
        }
    }
}

/// A command line that asks for what cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    /// The server's name leads nowhere.
    #[error("cannot find {0}: give --server an address or a name that resolves")]
    NoAddress(String),
    /// An option's value.
    #[error("--{option} {value}: {why}")]
    Value {
        /// The option's name.
        option: &'static str,
        /// What was typed.
        value: String,
        /// What is expected.
        why: &'static str,
    },
}

fn wrong(option: &'static str, value: impl ToString, why: &'static str) -> ArgumentError {
    ArgumentError::Value { option, value: value.to_string(), why }
}

impl Arguments {
    /// What is asked for.
    ///
    /// # Errors
    /// Something asked for cannot be; names the option.
    pub fn settings(&self) -> Result<Settings, ArgumentError> {
        if self.key_minimum > self.key_maximum {
            return Err(wrong("key-minimum", self.key_minimum, "larger than --key-maximum"));
        }
        if self.multi_get == 0 {
            return Err(wrong("multi-get", 0, "at least one key"));
        }
        let keys = self.keys()?;
        Ok(Settings {
            address: self.address()?,
            protocol: self.protocol,
            tls: self.tls.then(|| self.tls_settings()),
            threads: self.threads,
            clients: self.clients,
            pipeline: self.pipeline,
            sliding: self.sliding,
            ratio: self.ratio,
            multi_get: self.multi_get,
            stop: self.stop(&keys),
            keys,
            data_size: self.data_size()?,
            random_data: self.random_data,
            expiry: self.expiry_range,
            rate: self.rate()?,
            fill: self.fill,
            verify: self.verify,
            seed: if self.randomize { rand::random() } else { self.seed },
            distinct_client_seed: self.distinct_client_seed,
        })
    }

    fn address(&self) -> Result<ServerAddress, ArgumentError> {
        if let Some(path) = &self.unix_socket {
            return Ok(ServerAddress::Unix(path.clone()));
        }
        let port = self.port.unwrap_or(if self.protocol == Protocol::Resp { 6379 } else { 11211 });
        let mut found = (self.server.as_str(), port)
            .to_socket_addrs()
            .map_err(|_| ArgumentError::NoAddress(self.server.clone()))?;
        // `localhost` may mean both; servers that listen on one only listen on IPv4.
        let first = found.next().ok_or_else(|| ArgumentError::NoAddress(self.server.clone()))?;
        Ok(ServerAddress::Tcp(
            found.find(|other| first.is_ipv6() && other.is_ipv4()).unwrap_or(first),
        ))
    }

    fn tls_settings(&self) -> Tls {
        Tls {
            authority: self.cacert.clone(),
            client: self.cert.clone().zip(self.key.clone()),
            server_name: self.sni.clone(),
        }
    }

    fn keys(&self) -> Result<Keys, ArgumentError> {
        let whole = || wrong("key-pattern", &self.key_pattern, "two of R Z G S P, as in R:R");
        let (set, get) = self.key_pattern.split_once(':').ok_or_else(whole)?;
        Ok(Keys {
            prefix: self.key_prefix.clone(),
            minimum: self.key_minimum,
            maximum: self.key_maximum,
            set: self.pattern(set).ok_or_else(whole)?,
            get: self.pattern(get).ok_or_else(whole)?,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "the middle of a range needs no last digit")]
    fn pattern(&self, letter: &str) -> Option<Pattern> {
        let (minimum, maximum) = (self.key_minimum as f64, self.key_maximum as f64);
        match letter {
            "R" => Some(Pattern::Uniform),
            "S" => Some(Pattern::Sequential),
            "P" => Some(Pattern::Partitioned),
            "Z" => Some(Pattern::Zipf { exponent: self.key_zipf_exp }),
            "G" => Some(Pattern::Gaussian {
                median: self.key_median.unwrap_or(f64::midpoint(minimum, maximum)),
                deviation: self.key_stddev.unwrap_or((maximum - minimum) / 6.0),
            }),
            _ => None,
        }
    }

    fn stop(&self, keys: &Keys) -> Stop {
        match (self.test_time, self.requests) {
            (Some(time), _) => Stop::After(time),
            (None, Requests::Count(count)) => Stop::Requests(count),
            (None, Requests::AllKeys) => {
                let connections = (self.threads * self.clients) as u64;
                let partitioned = keys.set == Pattern::Partitioned;
                Stop::Requests(keys.count().div_ceil(if partitioned { connections } else { 1 }))
            }
        }
    }

    fn data_size(&self) -> Result<DataSize, ArgumentError> {
        if let Some(list) = &self.data_size_list {
            let sizes = list.split(',').map(pair::<usize, u32>).collect::<Option<Vec<_>>>();
            let sizes = sizes.filter(|sizes| sizes.iter().any(|(_, weight)| *weight > 0));
            let why = "sizes with weights, as in 100:9,1000:1";
            return sizes.map(DataSize::List).ok_or_else(|| wrong("data-size-list", list, why));
        }
        if let Some(text) = &self.data_size_lognormal {
            let why = "median, sigma and perhaps the largest, as in 200:1.5 or 200:1.5:100000";
            return log_normal(text).ok_or_else(|| wrong("data-size-lognormal", text, why));
        }
        Ok(match self.data_size_range {
            Some((least, most)) => DataSize::Range(least, most),
            None => DataSize::Fixed(self.data_size),
        })
    }

    fn rate(&self) -> Result<Option<u64>, ArgumentError> {
        let connections = (self.threads * self.clients) as u64;
        let rate = self.rate.or(self.rate_limiting.map(|each| each.saturating_mul(connections)));
        if rate == Some(0) {
            return Err(wrong("rate", 0, "at least one request per second"));
        }
        Ok(rate)
    }
}

fn pair<A: FromStr, B: FromStr>(text: &str) -> Option<(A, B)> {
    let (a, b) = text.split_once(':')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

fn log_normal(text: &str) -> Option<DataSize> {
    let mut parts = text.split(':');
    let (median, sigma): (f64, f64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let maximum = parts.next().map_or(Ok(1_000_000), str::parse).ok()?;
    let sound = median >= 1.0 && sigma >= 0.0 && sigma.is_finite() && parts.next().is_none();
    sound.then_some(DataSize::LogNormal { median, sigma, maximum })
}

fn protocol(name: &str) -> Result<Protocol, String> {
    match name {
        "text" | "memcache_text" => Ok(Protocol::Text),
        "meta" | "memcache_meta" => Ok(Protocol::Meta),
        "binary" | "memcache_binary" => Ok(Protocol::Binary),
        "resp" | "resp2" | "redis" => Ok(Protocol::Resp),
        _ => Err("one of text, meta, binary, resp (or memtier's memcache_text, memcache_binary, \
                  redis)"
            .to_owned()),
    }
}

fn ratio(text: &str) -> Result<Ratio, String> {
    match pair(text) {
        Some((0, 0)) | None => Err("sets to gets, as in 1:10".to_owned()),
        Some((sets, gets)) => Ok(Ratio { sets, gets }),
    }
}

fn range<T: FromStr + PartialOrd>(text: &str) -> Result<(T, T), String> {
    let parsed = text
        .split_once('-')
        .and_then(|(least, most)| Some((least.parse::<T>().ok()?, most.parse::<T>().ok()?)));
    parsed
        .filter(|(least, most)| least <= most)
        .ok_or_else(|| "two numbers, the smaller first, as in 1-1024".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let secs: f64 = text.parse().map_err(|_| "seconds, as in 60 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(secs)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "more than 0 seconds".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "at least 1".to_owned())
}
