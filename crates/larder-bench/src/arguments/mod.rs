//! The command line of `larder bench`. Options that memtier_benchmark has, too, carry its names, so
//! that published command lines run unchanged.

pub(crate) mod custom_options;
mod key_spaces;

use crate::arguments::custom_options::{CommandList, CommandOptions};
use crate::arguments::key_spaces;
use crate::find_rate::Bound;
use crate::load::wire::custom::{key_count, objection};
use crate::settings::{
    Arrivals, CustomCommand, DataSize, Distribution, KeySpace, Keys, Login, NamedServer, OnMiss,
    Pattern, Ratio, Settings, Steps, Stop, Tls, TraceReplay,
};
use clap::Args;
use larder_target::{Protocol, ServerAddress};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The options of `larder bench`. Sizes are in bytes, times in seconds.
#[derive(Args, Clone, Debug)]
#[command(disable_help_flag = true, args_override_self = true)]
pub struct Arguments {
    /// Show this help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,

    /// Host name or IP address of the server, or several between which the keys are distributed,
    /// separated by commas. Each may have a port of its own: a,b:11212,[::1]:11213
    #[arg(short = 's', long = "server", value_name = "HOST[:PORT],...", short_alias = 'h', alias = "host", default_value = "localhost", help_heading = CONNECTION)]
    pub server: String,
    /// TCP port of each server without a port of its own [default: 11211, or 6379 with --protocol
    /// resp]
    #[arg(short, long, help_heading = CONNECTION)]
    pub port: Option<u16>,
    /// How keys are distributed over several servers, as libmemcached does [default: modula]
    #[arg(long, value_enum, help_heading = CONNECTION)]
    pub distribution: Option<Distribution>,
    /// Use an IPv4 address of the server
    #[arg(short = '4', long, overrides_with = "ipv6", help_heading = CONNECTION)]
    pub ipv4: bool,
    /// Use an IPv6 address of the server
    #[arg(short = '6', long, overrides_with = "ipv4", help_heading = CONNECTION)]
    pub ipv6: bool,
    /// Path of the server's unix socket, which is used instead of TCP
    #[arg(short = 'S', long, help_heading = CONNECTION)]
    pub unix_socket: Option<PathBuf>,
    /// Protocol: text, meta, binary or resp, or one of memtier's names for them
    /// (memcache_text, memcache_binary, redis)
    #[arg(short = 'P', long, default_value = "text", value_parser = protocol, help_heading = CONNECTION)]
    pub protocol: Protocol,
    /// Credentials that each connection logs in with: USER:PASSWORD, or for RESP also PASSWORD alone
    /// (:PASSWORD if it contains a colon)
    #[arg(short = 'a', long, value_name = "CREDENTIALS", help_heading = CONNECTION)]
    pub authenticate: Option<String>,
    /// Close each connection after this number of requests and open it again
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..), help_heading = CONNECTION)]
    pub reconnect_interval: Option<u64>,
    /// Open lost connections again, as when the server is started again during the run. What was
    /// outstanding is never answered, which is no fault then
    #[arg(long, conflicts_with_all = ["find_rate", "clients_start", "client_stats", "trace"], help_heading = CONNECTION)]
    pub reconnect_on_error: bool,
    /// Connect with TLS
    #[arg(long, help_heading = CONNECTION)]
    pub tls: bool,
    /// PEM file with the client certificate that the server is shown
    #[arg(long, requires_all = ["tls", "key"], help_heading = CONNECTION)]
    pub cert: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, requires = "cert", help_heading = CONNECTION)]
    pub key: Option<PathBuf>,
    /// PEM file with the CA certificates that the server's certificate is checked with
    #[arg(long, requires = "tls", help_heading = CONNECTION)]
    pub cacert: Option<PathBuf>,
    /// Accept any server certificate, which is also the default without --cacert
    #[arg(long, requires = "tls", conflicts_with = "cacert", help_heading = CONNECTION)]
    pub tls_skip_verify: bool,
    /// Host name that the server's certificate must contain, sent as SNI [default: the address of
    /// the server]
    #[arg(long, requires = "tls", help_heading = CONNECTION)]
    pub sni: Option<String>,
    /// Seconds that a connection may take to be made, 0 for the system's own limit
    #[arg(long, value_name = "SECS", default_value = "0", value_parser = seconds_or_none, help_heading = CONNECTION)]
    pub connection_timeout: Timeout,
    /// Seconds without any answer after which the run ends. Also how long outstanding answers are
    /// waited for at the end of a timed run
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds, help_heading = CONNECTION)]
    pub timeout: Duration,

    /// Number of requests of each connection, or `allkeys` for as many as there are keys
    /// [default: 10000]. With --trace, number of requests of all connections together [default: the
    /// whole trace]
    #[arg(short = 'n', long, conflicts_with = "test_time", help_heading = LOAD)]
    pub requests: Option<Requests>,
    /// Duration of the run in seconds, instead of a number of requests
    #[arg(long, visible_alias = "duration", value_parser = seconds, help_heading = LOAD)]
    pub test_time: Option<Duration>,
    /// Number of connections of each thread; with several servers, of clients with a connection to each
    #[arg(short, long, default_value_t = 50, value_parser = at_least_one, help_heading = LOAD)]
    pub clients: usize,
    /// Begin with this number of connections of each thread, and add --clients-step of them after
    /// each --step-duration until there are --clients; only with --test-time
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one, requires_all = ["clients_step", "step_duration", "test_time"], help_heading = LOAD)]
    pub clients_start: Option<usize>,
    /// Number of connections of each thread that are added at each step
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one, requires = "clients_start", help_heading = LOAD)]
    pub clients_step: Option<usize>,
    /// Duration of each step in seconds
    #[arg(long, value_name = "SECS", value_parser = seconds, requires = "clients_start", help_heading = LOAD)]
    pub step_duration: Option<Duration>,
    /// Number of load threads
    #[arg(short, long, default_value_t = 4, value_parser = at_least_one, help_heading = LOAD)]
    pub threads: usize,
    /// Number of requests that a connection sends at once. The next ones are sent when all of them
    /// are answered
    #[arg(long, default_value_t = 1, value_parser = at_least_one, help_heading = LOAD)]
    pub pipeline: usize,
    /// Keep the pipeline full, as memtier does: send one request for each answer that arrives
    #[arg(long, conflicts_with = "rate", help_heading = LOAD)]
    pub sliding: bool,
    /// Ratio of sets to gets
    #[arg(long, default_value = "1:10", value_parser = ratio, help_heading = LOAD)]
    pub ratio: Ratio,
    /// Number of keys in each get
    #[arg(long, alias = "multi-key-get", default_value_t = 1, help_heading = LOAD)]
    pub multi_get: usize,
    /// Open loop: send this many requests per second over all connections together, each at its
    /// scheduled time, from which its latency is measured
    #[arg(long, conflicts_with = "rate_limiting", help_heading = LOAD)]
    pub rate: Option<u64>,
    /// Open loop: requests per second of each connection, in the bursts in which memtier sends them, with
    /// a sliding pipeline
    #[arg(long, help_heading = LOAD)]
    pub rate_limiting: Option<u64>,
    /// Open loop: when requests are sent [default: fixed with --rate, bursts with --rate-limiting]
    #[arg(long, value_enum, help_heading = LOAD)]
    pub arrivals: Option<Arrivals>,
    /// Find the highest rate at which this percentile of the latency stays under this bound, by runs of
    /// --test-time seconds each. With --rate, no higher rate is tried
    #[arg(long, value_name = "PERCENTILE:MILLISECONDS", requires = "test_time", conflicts_with_all = ["rate_limiting", "run_count", "sliding", "hdr_file_prefix", "print_all_runs", "print_percentiles"], help_heading = LOAD)]
    pub find_rate: Option<Bound>,
    /// Number of faults up to which the exit status is 0: error replies, wrong values, lost
    /// connections, and requests that were never sent or never answered
    #[arg(long, default_value_t = 0, help_heading = LOAD)]
    pub max_faults: u64,
    /// Set every key once before the measurement begins
    #[arg(long, help_heading = LOAD)]
    pub fill: bool,
    /// Number of runs, of which the medians are reported
    #[arg(short = 'x', long = "run-count", visible_alias = "runs", default_value_t = 1, value_parser = at_least_one, help_heading = LOAD)]
    pub run_count: usize,
    /// Seed of the random numbers. Runs with the same seed send the same requests
    #[arg(long, default_value_t = 1, help_heading = LOAD)]
    pub seed: u64,
    /// Choose a random seed, instead of --seed
    #[arg(long, help_heading = LOAD)]
    pub randomize: bool,
    /// Give each connection a seed of its own, so that connections send different requests
    #[arg(long, help_heading = LOAD)]
    pub distinct_client_seed: bool,

    /// Commands of the user's own
    #[command(flatten)]
    pub commands: CommandList,

    /// Prefix of all keys
    #[arg(long, default_value = "memtier-", help_heading = OBJECTS)]
    pub key_prefix: String,
    /// Smallest number of a key
    #[arg(long, default_value_t = 0, help_heading = OBJECTS)]
    pub key_minimum: u64,
    /// Largest number of a key
    #[arg(long, default_value_t = 10_000_000, help_heading = OBJECTS)]
    pub key_maximum: u64,
    /// Key selection of sets and of gets: R uniformly random, Z Zipf, G Gaussian, S sequential,
    /// P sequential with a part of the key range for each connection
    #[arg(long, default_value = "R:R", help_heading = OBJECTS)]
    pub key_pattern: String,
    /// Standard deviation of Gaussian key selection [default: a sixth of the key range]
    #[arg(long, help_heading = OBJECTS)]
    pub key_stddev: Option<f64>,
    /// Median of Gaussian key selection [default: the middle of the key range]
    #[arg(long, help_heading = OBJECTS)]
    pub key_median: Option<f64>,
    /// Exponent of Zipf key selection; 0 is uniform
    #[arg(long, default_value_t = 1.0, help_heading = OBJECTS)]
    pub key_zipf_exp: f64,
    /// Size of each value in bytes
    #[arg(short = 'd', long, default_value_t = 32, group = "size", help_heading = OBJECTS)]
    pub data_size: usize,
    /// Value sizes in bytes, uniformly distributed between MIN and MAX
    #[arg(long, value_name = "MIN-MAX", value_parser = range::<usize>, conflicts_with = "data_size", help_heading = OBJECTS)]
    pub data_size_range: Option<(usize, usize)>,
    /// How --data-size-range is used: R random sizes, S sizes that grow evenly with the number of the
    /// key, from MIN at --key-minimum to MAX at --key-maximum
    #[arg(long, value_name = "R|S", requires = "data_size_range", value_parser = ["R", "S"], help_heading = OBJECTS)]
    pub data_size_pattern: Option<String>,
    /// Value sizes in bytes, each with the weight by which it is chosen
    #[arg(long, value_name = "SIZE:WEIGHT,...", conflicts_with_all = ["data_size", "data_size_range"], help_heading = OBJECTS)]
    pub data_size_list: Option<String>,
    /// Log-normally distributed value sizes: median in bytes, standard deviation of the logarithm,
    /// and maximum in bytes [default maximum: 1000000]
    #[arg(long, value_name = "MEDIAN:SIGMA[:MAX]", conflicts_with_all = ["data_size", "data_size_range", "data_size_list"], help_heading = OBJECTS)]
    pub data_size_lognormal: Option<String>,
    /// Fill values with random bytes, which do not compress
    #[arg(short = 'R', long, help_heading = OBJECTS)]
    pub random_data: bool,
    /// TTL of each set in seconds, uniformly distributed between MIN and MAX [default: no expiry]
    #[arg(long, value_name = "MIN-MAX", value_parser = range::<u32>, help_heading = OBJECTS)]
    pub expiry_range: Option<(u32, u32)>,
    /// Derive values from their keys, check every value that is returned, and count wrong ones
    #[arg(long, help_heading = OBJECTS)]
    pub verify: bool,
    /// Accepted for memtier's sake and without effect: keys are always generated
    #[arg(long, hide = true)]
    pub generate_keys: bool,

    /// TOML file with several key spaces, of which each request chooses one: their names, shares,
    /// keys, ratios, sizes and expiries. docs/bench.md describes it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "ratio", "key_prefix", "key_minimum", "key_maximum", "key_pattern", "key_stddev", "key_median", "key_zipf_exp", "data_size", "data_size_range", "data_size_list", "data_size_lognormal", "expiry_range"], help_heading = OBJECTS)]
    pub key_spaces: Option<PathBuf>,

    /// Replay the requests of this file: in our form, time_secs,key,size[,ttl], or in that of
    /// Twitter's cache traces. docs/bench.md describes both
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "ratio", "multi_get", "rate", "rate_limiting", "arrivals", "find_rate", "fill", "verify", "seed", "randomize", "distinct_client_seed", "clients_start", "client_stats", "key_spaces", "key_prefix", "key_minimum", "key_maximum", "key_pattern", "key_stddev", "key_median", "key_zipf_exp", "data_size", "data_size_range", "data_size_list", "data_size_lognormal", "expiry_range"], help_heading = TRACE)]
    pub trace: Option<PathBuf>,
    /// Open loop: replay the trace this many times as fast as it was recorded, each request at its
    /// time, from which its latency is measured; TTLs are divided by it [default: a closed loop, as
    /// fast as the server answers]
    #[arg(long, value_name = "FACTOR", requires = "trace", conflicts_with = "sliding", value_parser = speed, help_heading = TRACE)]
    pub speed: Option<f64>,
    /// What follows a get that misses: a set of the recorded size and TTL, or nothing [default: a set
    /// in our form, nothing in Twitter's]
    #[arg(long, value_enum, requires = "trace", help_heading = TRACE)]
    pub on_miss: Option<OnMiss>,

    /// Process ID of the server, whose CPU time and memory are reported [default: the process on
    /// this machine that listens on the address]
    #[arg(long, help_heading = OUTPUT)]
    pub pid: Option<i32>,
    /// Print all settings as JSON before the results
    #[arg(long, help_heading = OUTPUT)]
    pub show_config: bool,
    /// Do not print the latency histogram
    #[arg(long, help_heading = OUTPUT)]
    pub hide_histogram: bool,
    /// Latency percentiles that the table shows
    #[arg(long, default_value = "50,90,99,99.9,99.99", value_delimiter = ',', help_heading = OUTPUT)]
    pub print_percentiles: Vec<f64>,
    /// Write the table to this file instead of standard output
    #[arg(short = 'o', long, help_heading = OUTPUT)]
    pub out_file: Option<PathBuf>,
    /// Write the machine, the settings and all results to this file as JSON
    #[arg(long, help_heading = OUTPUT)]
    pub json_out_file: Option<PathBuf>,
    /// Write latency histograms to files with this prefix: .hgrm for each command, and .hlog by
    /// second
    #[arg(long, help_heading = OUTPUT)]
    pub hdr_file_prefix: Option<String>,
    /// Write what each connection did in each second to CSV files with this prefix:
    /// PREFIX-RUN-THREAD-CONNECTION.csv
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["command", "find_rate"], help_heading = OUTPUT)]
    pub client_stats: Option<String>,
    /// Print the results of each run, not only the medians
    #[arg(long, help_heading = OUTPUT)]
    pub print_all_runs: bool,
    /// Do not print progress to standard error
    #[arg(short, long, help_heading = OUTPUT)]
    pub quiet: bool,
}

const CONNECTION: &str = "Connection";
const LOAD: &str = "Load";
const OBJECTS: &str = "Objects";
const TRACE: &str = "Trace";
const OUTPUT: &str = "Output";

/// The argument of `--connection-timeout`, in which 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Option<Duration>);

/// Number of requests of each connection, if no other is given.
const REQUESTS_DEFAULT: u64 = 10_000;

/// The argument of `--requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// A number.
    Count(u64),
    /// As many requests as there are keys; with partitioned keys, as many as the connection's part
    /// has.
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
            _ => Err("expected a positive number or `allkeys`".to_owned()),
        }
    }
}

/// An option whose value cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    /// The server's name does not resolve.
    #[error("the server name `{0}` does not resolve; give --server an IP address or another name")]
    NoAddress(String),
    /// A value that is out of range or malformed.
    #[error("--{option} {value}: expected {expected}")]
    Value {
        /// The option's long name, without dashes.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// What the option accepts.
        expected: &'static str,
    },
    /// The file of key spaces cannot be used.
    #[error("--key-spaces {file}: {why}")]
    KeySpaces {
        /// The file's name.
        file: String,
        /// What is wrong with it.
        why: String,
    },
}

fn wrong(option: &'static str, value: impl ToString, expected: &'static str) -> ArgumentError {
    ArgumentError::Value { option, value: value.to_string(), expected }
}

impl Arguments {
    /// The validated settings of these options.
    ///
    /// # Errors
    /// An option's value cannot be used, or the server's name does not resolve.
    pub fn settings(&self) -> Result<Settings, ArgumentError> {
        if self.key_minimum > self.key_maximum {
            return Err(wrong(
                "key-minimum",
                self.key_minimum,
                "at most the value of --key-maximum",
            ));
        }
        if self.multi_get == 0 {
            return Err(wrong("multi-get", 0, "at least one key"));
        }
        let percentile = self.print_percentiles.iter().find(|p| !(0.0..=100.0).contains(*p));
        if let Some(percentile) = percentile {
            return Err(wrong("print-percentiles", percentile, "percentiles between 0 and 100"));
        }
        let rate = self.rate()?;
        let arrivals = self.arrivals(rate)?;
        let parts = self.reconnect_interval.filter(|n| !n.is_multiple_of(self.pipeline as u64));
        if let (Some(interval), true) = (parts, rate.is_some() || self.find_rate.is_some()) {
            // A pipeline is due as a whole.
            let expected = "a multiple of --pipeline in an open loop";
            return Err(wrong("reconnect-interval", interval, expected));
        }
        let keys = self.keys()?;
        let servers = self.servers()?;
        self.check_number_of_servers(&servers)?;
        Ok(Settings {
            servers,
            distribution: self.distribution.unwrap_or_default(),
            protocol: self.protocol,
            login: self.login()?,
            tls: self.tls.then(|| self.tls_settings()),
            client_stats: self.client_stats.is_some(),
            reconnect_interval: self.reconnect_interval,
            reconnect_on_error: self.reconnect_on_error,
            steps: self.steps()?,
            threads: self.threads,
            clients: self.clients,
            pipeline: self.pipeline,
            // Recorded requests are due one by one.
            sliding: self.sliding || arrivals == Arrivals::Bursts || self.speed.is_some(),
            ratio: self.ratio,
            multi_get: self.multi_get,
            commands: self.commands()?,
            stop: self.stop(&keys),
            key_spaces: self.key_spaces()?,
            trace: self.trace()?,
            keys,
            data_size: self.data_size()?,
            random_data: self.random_data,
            expiry: self.expiry_range,
            rate,
            arrivals,
            timeout: self.timeout,
            connection_timeout: self.connection_timeout.0,
            fill: self.fill,
            verify: self.verify,
            seed: if self.randomize { rand::random() } else { self.seed },
            distinct_client_seed: self.distinct_client_seed,
        })
    }

    fn servers(&self) -> Result<Vec<NamedServer>, ArgumentError> {
        if let Some(path) = &self.unix_socket {
            if self.server.contains(',') {
                return Err(wrong("unix-socket", path.display(), "no list of servers"));
            }
            return Ok(vec![NamedServer::at(ServerAddress::Unix(path.clone()))]);
        }
        let mut servers: Vec<NamedServer> = Vec::new();
        for name in self.server.split(',') {
            let expected = "HOST or HOST:PORT, with an IPv6 address before a port in brackets, and \
                            commas between several";
            let (host, port) =
                host_and_port(name).ok_or_else(|| wrong("server", &self.server, expected))?;
            let address = ServerAddress::Tcp(self.resolve(host, port)?);
            if servers.iter().any(|other| other.address == address) {
                return Err(wrong("server", &self.server, "each server once"));
            }
            servers.push(NamedServer { host: host.to_owned(), address });
        }
        Ok(servers)
    }

    fn resolve(&self, host: &str, port: Option<u16>) -> Result<SocketAddr, ArgumentError> {
        let usual = if self.protocol == Protocol::Resp { 6379 } else { 11211 };
        let port = port.or(self.port).unwrap_or(usual);
        let mut found = (host, port)
            .to_socket_addrs()
            .map_err(|_| ArgumentError::NoAddress(host.to_owned()))?
            .filter(|address| !self.ipv4 || address.is_ipv4())
            .filter(|address| !self.ipv6 || address.is_ipv6());
        // `localhost` can resolve to ::1 first, on which a server that listens on IPv4 alone does not
        // answer.
        let first = found.next().ok_or_else(|| ArgumentError::NoAddress(host.to_owned()))?;
        Ok(found.find(|other| first.is_ipv6() && other.is_ipv4()).unwrap_or(first))
    }

    /// Refuses options that would be ignored with so many servers.
    fn check_number_of_servers(&self, servers: &[NamedServer]) -> Result<(), ArgumentError> {
        if let ([_], Some(distribution)) = (servers, self.distribution) {
            return Err(wrong("distribution", distribution, "several servers (--server)"));
        }
        if servers.len() == 1 {
            return Ok(());
        }
        if let Some(pid) = self.pid {
            return Err(wrong("pid", pid, "one server; those of several are found by themselves"));
        }
        if let Some(prefix) = &self.client_stats {
            return Err(wrong("client-stats", prefix, "one server"));
        }
        if self.reconnect_on_error {
            return Err(wrong("reconnect-on-error", "", "one server"));
        }
        if let Some(interval) = self.reconnect_interval {
            return Err(wrong("reconnect-interval", interval, "one server"));
        }
        if let Some(trace) = &self.trace {
            return Err(wrong("trace", trace.display(), "one server"));
        }
        let without_server = self.commands.0.iter().find(|command| key_count(&command.line) != 1);
        match without_server {
            Some(command) => {
                Err(wrong("command", &command.line, "one __key__, which decides the server"))
            }
            None => Ok(()),
        }
    }

    fn key_spaces(&self) -> Result<Vec<KeySpace>, ArgumentError> {
        let Some(file) = &self.key_spaces else { return Ok(Vec::new()) };
        if self.requests == Some(Requests::AllKeys) {
            return Err(wrong("requests", "allkeys", "a number with --key-spaces"));
        }
        key_spaces::read(file, self).map_err(|why| {
            let file = file.display().to_string();
            ArgumentError::KeySpaces { file, why }
        })
    }

    fn trace(&self) -> Result<Option<TraceReplay>, ArgumentError> {
        let Some(file) = self.trace.clone() else { return Ok(None) };
        let requests = match self.requests {
            Some(Requests::AllKeys) => {
                return Err(wrong("requests", "allkeys", "a number with --trace"));
            }
            Some(Requests::Count(count)) => Some(count),
            None => None,
        };
        Ok(Some(TraceReplay { file, speed: self.speed, on_miss: self.on_miss, requests }))
    }

    fn steps(&self) -> Result<Option<Steps>, ArgumentError> {
        let (Some(start), Some(step), Some(every)) =
            (self.clients_start, self.clients_step, self.step_duration)
        else {
            return Ok(None);
        };
        if start >= self.clients {
            return Err(wrong("clients-start", start, "less than the value of --clients"));
        }
        Ok(Some(Steps { start, step, every }))
    }

    fn login(&self) -> Result<Option<Login>, ArgumentError> {
        let Some(credentials) = &self.authenticate else { return Ok(None) };
        let (user, password) = match credentials.split_once(':') {
            Some(("", password)) => (None, password),
            Some((user, password)) => (Some(user.to_owned()), password),
            None => (None, credentials.as_str()),
        };
        if user.is_none() && self.protocol != Protocol::Resp {
            // The credentials do not belong in a message.
            return Err(wrong("authenticate", "...", "USER:PASSWORD with memcached's protocols"));
        }
        Ok(Some(Login { user, password: password.to_owned() }))
    }

    fn tls_settings(&self) -> Tls {
        Tls {
            authority: self.cacert.clone(),
            client: self.cert.clone().zip(self.key.clone()),
            server_name: self.sni.clone(),
        }
    }

    pub(crate) fn keys(&self) -> Result<Keys, ArgumentError> {
        let whole = || wrong("key-pattern", &self.key_pattern, "two of R Z G S P, such as R:R");
        let (set, get) = self.key_pattern.split_once(':').ok_or_else(whole)?;
        Ok(Keys {
            prefix: self.key_prefix.clone(),
            minimum: self.key_minimum,
            maximum: self.key_maximum,
            set: self.pattern(set).ok_or_else(whole)?,
            get: self.pattern(get).ok_or_else(whole)?,
        })
    }

    fn commands(&self) -> Result<Vec<CustomCommand>, ArgumentError> {
        let command = |options: &CommandOptions| {
            let CommandOptions { line, ratio, pattern } = options;
            if let Some(expected) = objection(self.protocol, line) {
                return Err(wrong("command", line, expected));
            }
            let expected = "one of R Z G S P";
            let pattern = self
                .pattern(pattern)
                .ok_or_else(|| wrong("command-key-pattern", pattern, expected))?;
            Ok(CustomCommand { line: line.clone(), ratio: *ratio, pattern })
        };
        self.commands.0.iter().map(command).collect()
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
            (None, _) if self.trace.is_some() => Stop::EndOfTrace,
            (None, None) => Stop::Requests(REQUESTS_DEFAULT),
            (None, Some(Requests::Count(count))) => Stop::Requests(count),
            (None, Some(Requests::AllKeys)) => {
                let clients = (self.threads * self.clients) as u64;
                let partitioned = keys.set == Pattern::Partitioned;
                Stop::Requests(keys.count().div_ceil(if partitioned { clients } else { 1 }))
            }
        }
    }

    pub(crate) fn data_size(&self) -> Result<DataSize, ArgumentError> {
        if let Some(list) = &self.data_size_list {
            let sizes = list.split(',').map(pair::<usize, u32>).collect::<Option<Vec<_>>>();
            let sizes = sizes.filter(|sizes| sizes.iter().any(|(_, weight)| *weight > 0));
            let expected = "sizes with weights, such as 100:9,1000:1";
            return sizes
                .map(DataSize::List)
                .ok_or_else(|| wrong("data-size-list", list, expected));
        }
        if let Some(text) = &self.data_size_lognormal {
            let expected = "MEDIAN:SIGMA or MEDIAN:SIGMA:MAX, such as 200:1.5:100000";
            return log_normal(text).ok_or_else(|| wrong("data-size-lognormal", text, expected));
        }
        Ok(match self.data_size_range {
            Some((minimum, maximum)) if self.data_size_pattern.as_deref() == Some("S") => {
                DataSize::ByKey { minimum, maximum, keys: (self.key_minimum, self.key_maximum) }
            }
            Some((least, most)) => DataSize::Range(least, most),
            None => DataSize::Fixed(self.data_size),
        })
    }

    fn arrivals(&self, rate: Option<u64>) -> Result<Arrivals, ArgumentError> {
        let usual = match self.rate_limiting {
            Some(_) => Arrivals::Bursts,
            None => Arrivals::Fixed,
        };
        let arrivals = self.arrivals.unwrap_or(usual);
        match arrivals {
            Arrivals::Poisson if rate.is_none() && self.find_rate.is_none() => Err(wrong(
                "arrivals",
                "poisson",
                "an open loop: --rate, --rate-limiting or --find-rate",
            )),
            Arrivals::Bursts if self.rate_limiting.is_none() => {
                Err(wrong("arrivals", "bursts", "--rate-limiting"))
            }
            Arrivals::Fixed
                if self.arrivals.is_some() && rate.is_none() && self.find_rate.is_none() =>
            {
                Err(wrong(
                    "arrivals",
                    "fixed",
                    "an open loop: --rate, --rate-limiting or --find-rate",
                ))
            }
            Arrivals::Fixed | Arrivals::Poisson if self.sliding && rate.is_some() => {
                Err(wrong("arrivals", "fixed or poisson", "no --sliding"))
            }
            _ => Ok(arrivals),
        }
    }

    fn rate(&self) -> Result<Option<u64>, ArgumentError> {
        let clients = (self.threads * self.clients) as u64;
        let rate = self.rate.or(self.rate_limiting.map(|each| each.saturating_mul(clients)));
        if rate == Some(0) {
            return Err(wrong("rate", 0, "at least one request per second"));
        }
        Ok(rate)
    }
}

/// Splits `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT` or `IPV6`; none if it is none of them.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let port = |text: &str| text.parse().ok().map(Some);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { port(after.strip_prefix(':')?)? })
        }
        None => match text.rsplit_once(':') {
            Some((host, number)) if !host.contains(':') => (host, port(number)?),
            _ => (text, None),
        },
    };
    (!host.is_empty()).then_some((host, port))
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
        _ => Err(
            "expected text, meta, binary or resp (or memtier's memcache_text, memcache_binary or \
                  redis)"
                .to_owned(),
        ),
    }
}

pub(crate) fn ratio(text: &str) -> Result<Ratio, String> {
    match pair(text) {
        Some((0, 0)) | None => Err("expected sets:gets, such as 1:10".to_owned()),
        Some((sets, gets)) => Ok(Ratio { sets, gets }),
    }
}

pub(crate) fn range<T: FromStr + PartialOrd>(text: &str) -> Result<(T, T), String> {
    let parsed = text
        .split_once('-')
        .and_then(|(least, most)| Some((least.parse::<T>().ok()?, most.parse::<T>().ok()?)));
    parsed
        .filter(|(least, most)| least <= most)
        .ok_or_else(|| "expected MIN-MAX, such as 1-1024".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let secs: f64 =
        text.parse().map_err(|_| "expected a number of seconds, such as 60 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(secs)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "expected more than 0 seconds".to_owned())
}

fn seconds_or_none(text: &str) -> Result<Timeout, String> {
    if text.parse() == Ok(0.0) {
        return Ok(Timeout(None));
    }
    seconds(text).map(|time| Timeout(Some(time)))
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| *speed > 0.0 && *speed <= 1e6);
    speed.ok_or_else(|| "expected a number above 0 and at most 1,000,000".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| "expected a number of at least 1".to_owned())
}
