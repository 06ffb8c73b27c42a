//! The command line of `larder bench`. Options that memtier_benchmark also has keep its names, so
//! that published command lines run unchanged.

pub(crate) mod custom_options;
pub(crate) mod error;
mod items;
mod key_spaces;
mod servers;
mod validation;
pub(crate) mod values;

use crate::arguments::custom_options::CommandList;
use crate::find_rate::Bound;
use crate::settings::{Arrivals, Distribution, OnMiss, Ratio};
use clap::Args;
use larder_target::Protocol;
use std::path::PathBuf;
use std::time::Duration;
use values::{
    Requests, Timeout, at_least_one, protocol, range, ratio, seconds, seconds_or_none, speed,
};

/// The options of `larder bench`. Sizes are in bytes, and times in seconds unless an option says
/// otherwise.
#[derive(Args, Clone, Debug)]
#[command(disable_help_flag = true, args_override_self = true)]
pub struct Arguments {
    /// Show this help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,

    /// Host name or IP address of the server, or a list of several servers that share the keys.
    /// Each may have its own port: a,b:11212,[::1]:11213
    #[arg(short = 's', long = "server", value_name = "HOST[:PORT],...", short_alias = 'h', alias = "host", default_value = "localhost", help_heading = CONNECTION)]
    pub server: String,
    /// TCP port of servers without a port in --server [default: 11211, or 6379 with --protocol
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
    /// Connect to this unix socket instead of TCP
    #[arg(short = 'S', long, help_heading = CONNECTION)]
    pub unix_socket: Option<PathBuf>,
    /// Protocol: text, meta, binary or resp, or one of memtier's names for them
    /// (memcache_text, memcache_binary, redis)
    #[arg(short = 'P', long, default_value = "text", value_parser = protocol, help_heading = CONNECTION)]
    pub protocol: Protocol,
    /// Log in with these credentials on each connection: USER:PASSWORD, or for RESP also PASSWORD
    /// alone (:PASSWORD if it contains a colon)
    #[arg(short = 'a', long, value_name = "CREDENTIALS", help_heading = CONNECTION)]
    pub authenticate: Option<String>,
    /// Reconnect each connection after this number of requests
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..), help_heading = CONNECTION)]
    pub reconnect_interval: Option<u64>,
    /// Reconnect lost connections, for example after a restart of the server. Their outstanding
    /// requests do not count as faults
    #[arg(long, conflicts_with_all = ["find_rate", "clients_start", "client_stats", "trace"], help_heading = CONNECTION)]
    pub reconnect_on_error: bool,
    /// Connect with TLS
    #[arg(long, help_heading = CONNECTION)]
    pub tls: bool,
    /// PEM file with the client certificate
    #[arg(long, requires_all = ["tls", "key"], help_heading = CONNECTION)]
    pub cert: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, requires = "cert", help_heading = CONNECTION)]
    pub key: Option<PathBuf>,
    /// PEM file with the CA certificates that verify the server's certificate
    #[arg(long, requires = "tls", help_heading = CONNECTION)]
    pub cacert: Option<PathBuf>,
    /// Accept any server certificate; the default without --cacert
    #[arg(long, requires = "tls", conflicts_with = "cacert", help_heading = CONNECTION)]
    pub tls_skip_verify: bool,
    /// Host name that the server's certificate must contain, sent as SNI [default: the address of
    /// the server]
    #[arg(long, requires = "tls", help_heading = CONNECTION)]
    pub sni: Option<String>,
    /// Maximum time to establish a connection in seconds; 0 is the system's limit, or the value of
    /// --timeout during the run
    #[arg(long, value_name = "SECS", default_value = "0", value_parser = seconds_or_none, help_heading = CONNECTION)]
    pub connection_timeout: Timeout,
    /// End the run after this many seconds without a reply. A timed run also waits this long for
    /// outstanding replies at its end
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds, help_heading = CONNECTION)]
    pub timeout: Duration,

    /// Number of requests of each connection, or `allkeys` for the number of keys [default: 10000].
    /// With --trace, number of requests of all connections together [default: all requests of the
    /// trace]
    #[arg(short = 'n', long, conflicts_with = "test_time", help_heading = LOAD)]
    pub requests: Option<Requests>,
    /// Duration of the run in seconds, instead of a number of requests
    #[arg(long, visible_alias = "duration", value_parser = seconds, help_heading = LOAD)]
    pub test_time: Option<Duration>,
    /// Number of connections per thread; with several servers, number of clients with a connection
    /// to each
    #[arg(short, long, default_value_t = 50, value_parser = at_least_one, help_heading = LOAD)]
    pub clients: usize,
    /// Start with this number of connections per thread, and add --clients-step after each
    /// --step-duration until there are --clients; only with --test-time
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one, requires_all = ["clients_step", "step_duration", "test_time"], help_heading = LOAD)]
    pub clients_start: Option<usize>,
    /// Number of connections per thread to add at each step
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one, requires = "clients_start", help_heading = LOAD)]
    pub clients_step: Option<usize>,
    /// Duration of each step in seconds
    #[arg(long, value_name = "SECS", value_parser = seconds, requires = "clients_start", help_heading = LOAD)]
    pub step_duration: Option<Duration>,
    /// Number of load threads
    #[arg(short, long, default_value_t = 4, value_parser = at_least_one, help_heading = LOAD)]
    pub threads: usize,
    /// Number of requests that a connection sends at once. It sends the next requests when all of
    /// these are answered
    #[arg(long, default_value_t = 1, value_parser = at_least_one, help_heading = LOAD)]
    pub pipeline: usize,
    /// Keep the pipeline full, as memtier does: send one request for each reply that arrives
    #[arg(long, conflicts_with = "rate", help_heading = LOAD)]
    pub sliding: bool,
    /// Ratio of sets to gets
    #[arg(long, default_value = "1:10", value_parser = ratio, help_heading = LOAD)]
    pub ratio: Ratio,
    /// Number of keys in each get
    #[arg(long, alias = "multi-key-get", default_value_t = 1, help_heading = LOAD)]
    pub multi_get: usize,
    /// Open loop: send this many requests per second over all connections together. Latency counts
    /// from the scheduled time of a request
    #[arg(long, conflicts_with = "rate_limiting", help_heading = LOAD)]
    pub rate: Option<u64>,
    /// Open loop: requests per second of each connection, in bursts like memtier's and with a
    /// sliding pipeline
    #[arg(long, help_heading = LOAD)]
    pub rate_limiting: Option<u64>,
    /// Open loop: distribution of requests over time [default: fixed with --rate, bursts with
    /// --rate-limiting]
    #[arg(long, value_enum, help_heading = LOAD)]
    pub arrivals: Option<Arrivals>,
    /// Find the highest rate at which this percentile of the latency is at most this bound, in runs
    /// of --test-time seconds each. --rate limits the rates to try
    #[arg(long, value_name = "PERCENTILE:MILLISECONDS", requires = "test_time", conflicts_with_all = ["rate_limiting", "run_count", "sliding", "hdr_file_prefix", "print_all_runs", "print_percentiles"], help_heading = LOAD)]
    pub find_rate: Option<Bound>,
    /// Maximum number of faults for exit status 0. Faults are error replies, wrong values, lost
    /// connections, and requests that were never sent or never answered
    #[arg(long, default_value_t = 0, help_heading = LOAD)]
    pub max_faults: u64,
    /// Set every key at least once before the measurement
    #[arg(long, help_heading = LOAD)]
    pub fill: bool,
    /// Number of runs; the results are the medians of their figures
    #[arg(short = 'x', long = "run-count", visible_alias = "runs", default_value_t = 1, value_parser = at_least_one, help_heading = LOAD)]
    pub run_count: usize,
    /// Seed of the random numbers. Runs with the same seed send the same requests
    #[arg(long, default_value_t = 1, help_heading = LOAD)]
    pub seed: u64,
    /// Choose a random seed, instead of --seed
    #[arg(long, help_heading = LOAD)]
    pub randomize: bool,
    /// Give each connection its own seed, so that connections send different requests
    #[arg(long, help_heading = LOAD)]
    pub distinct_client_seed: bool,

    /// Custom commands
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
    /// How --data-size-range is used: R random sizes, S sizes that grow evenly with the number of
    /// the key, from MIN at --key-minimum to MAX at --key-maximum
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
    /// No effect, because keys are always generated; accepted for compatibility with memtier
    #[arg(long, hide = true)]
    pub generate_keys: bool,

    /// TOML file that defines key spaces: their names, shares of the requests, keys, ratios, value
    /// sizes and expiries. docs/bench.md describes it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "ratio", "key_prefix", "key_minimum", "key_maximum", "key_pattern", "key_stddev", "key_median", "key_zipf_exp", "data_size", "data_size_range", "data_size_list", "data_size_lognormal", "expiry_range"], help_heading = OBJECTS)]
    pub key_spaces: Option<PathBuf>,

    /// Replay the requests of this file, in Larder's form (time_secs,key,size[,ttl]) or in that of
    /// Twitter's cache traces. docs/bench.md describes both
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "ratio", "multi_get", "rate", "rate_limiting", "arrivals", "find_rate", "fill", "verify", "seed", "randomize", "distinct_client_seed", "clients_start", "client_stats", "key_spaces", "key_prefix", "key_minimum", "key_maximum", "key_pattern", "key_stddev", "key_median", "key_zipf_exp", "data_size", "data_size_range", "data_size_list", "data_size_lognormal", "expiry_range"], help_heading = TRACE)]
    pub trace: Option<PathBuf>,
    /// Open loop: replay the trace at this multiple of its recorded speed. Latency counts from the
    /// scheduled time of a request, and TTLs are divided by the factor [default: a closed loop, as
    /// fast as the server answers]
    #[arg(long, value_name = "FACTOR", requires = "trace", conflicts_with = "sliding", value_parser = speed, help_heading = TRACE)]
    pub speed: Option<f64>,
    /// Request to send after a miss: a set with the recorded size and TTL, or nothing [default: set
    /// for a trace in Larder's form, nothing for one in Twitter's]
    #[arg(long, value_enum, requires = "trace", help_heading = TRACE)]
    pub on_miss: Option<OnMiss>,

    /// Process ID of the server, for the report of its CPU time and memory [default: the process on
    /// this machine that listens on the address]
    #[arg(long, help_heading = OUTPUT)]
    pub pid: Option<i32>,
    /// Print all settings as JSON before the results
    #[arg(long, help_heading = OUTPUT)]
    pub show_config: bool,
    /// Do not print the latency histogram
    #[arg(long, help_heading = OUTPUT)]
    pub hide_histogram: bool,
    /// Latency percentiles of the table and of the JSON file
    #[arg(long, default_value = "50,90,99,99.9,99.99", value_delimiter = ',', help_heading = OUTPUT)]
    pub print_percentiles: Vec<f64>,
    /// Write the table to this file instead of standard output
    #[arg(short = 'o', long, help_heading = OUTPUT)]
    pub out_file: Option<PathBuf>,
    /// Write the machine, the settings and all results to this file as JSON
    #[arg(long, help_heading = OUTPUT)]
    pub json_out_file: Option<PathBuf>,
    /// Write latency histograms to files with this prefix: one .hgrm per command, and one .hlog
    /// with a histogram per second
    #[arg(long, help_heading = OUTPUT)]
    pub hdr_file_prefix: Option<String>,
    /// Write per-second statistics of each connection to CSV files with this prefix:
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

impl Arguments {}
