//! The command line: memcached's options and Larder's own.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | [`Options`]: one field for each option |
//! | `layers.rs` | merges the command line, the environment and the configuration file |
//! | `file.rs` | parses the configuration file |
//! | `words.rs` | removes white space around the values on the command line |
//! | `values.rs` | values: sizes, file modes and delimiters |
//! | `choices.rs` | values: fixed sets of choices |
//! | `suboptions.rs` | the values of the `-o` list |
//! | `flash.rs` | the values of the `-o` list for the flash tier |
//! | `suboption_table.rs` | one row for each `-o` suboption |
//! | `suboption_list.rs` | parses the `-o` list |
//! | `check.rs` | conflicts between options; options that this build does not support |
//! | `address.rs` | whether an address is on the loopback |
//! | `refusal.rs` | the message and the exit status of a refusal |
//! | `help.rs` | the texts of `-h` and `--help` |

mod address;
mod check;
mod choices;
mod file;
pub mod flash;
mod help;
mod layers;
mod refusal;
mod suboption_list;
mod suboption_table;
pub mod suboptions;
mod values;
mod words;

pub use choices::{Ack, Doubt, EngineKind, EvictionPolicy, Runtime};
pub use larder_support::tls::Tls;
pub use refusal::OptionsRefusal;
pub use suboptions::Suboptions;

use crate::process::version;
use clap::parser::ValueSource;
use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser};
use larder_cluster::NodeTlsFiles;
use larder_store::eviction::SIZE_EXPONENT;
use std::ffi::OsString;
use std::path::PathBuf;
use values::{delimiter, item_size, octal};

/// Larder, a cache server that speaks memcached's protocols and Redis's RESP
#[derive(Clone, Debug, Parser)]
#[command(
    name = "larderd",
    version = version::LARDER,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    allow_negative_numbers = true,
    infer_long_args = true,
    after_long_help = suboption_list::help()
)]
#[expect(clippy::struct_excessive_bools, reason = "each is one switch of the command line")]
pub struct Options {
    /// TCP port to listen on; 0: none, -1: any free port
    #[arg(
        short = 'p',
        long,
        value_name = "NUM",
        default_value_t = 11211,
        allow_hyphen_values = true,
        help_heading = "Network"
    )]
    pub port: i32,

    /// Addresses to listen on: HOST, HOST:PORT, [V6]:PORT, * or *:PORT, with optional prefixes
    /// [default: *]
    ///
    /// Prefixes, in this order: notls:, mtls: or btls: (with -Z: no TLS, TLS with a client
    /// certificate, TLS without one); proto[ascii]:, proto[binary]:, proto[negotiating]:
    /// (override -B) or proto[resp]: (Redis).
    #[arg(
        short = 'l',
        long,
        value_name = "ADDR,...",
        value_delimiter = ',',
        help_heading = "Network"
    )]
    pub listen: Vec<String>,

    /// UDP port to listen on, on the loopback unless -l is given; 0: none, -1: any free port
    #[arg(
        short = 'U',
        long,
        value_name = "NUM",
        default_value_t = 0,
        allow_hyphen_values = true,
        help_heading = "Network",
        hide_short_help = true
    )]
    pub udp_port: i32,

    /// Listen on this unix socket instead of TCP and UDP
    #[arg(short = 's', long, value_name = "FILE", help_heading = "Network")]
    pub unix_socket: Option<PathBuf>,

    /// Permissions of the unix socket, in octal
    #[arg(short = 'a', long, value_name = "MASK", default_value = "700", value_parser = octal, help_heading = "Network", hide_short_help = true)]
    pub unix_mask: u32,

    /// Maximum number of open connections
    #[arg(short = 'c', long, value_name = "NUM", default_value_t = 1024, help_heading = "Network")]
    pub conn_limit: usize,

    /// Maximum number of connections in the accept queue of each address (listen backlog)
    #[arg(
        short = 'b',
        long,
        value_name = "NUM",
        default_value_t = 1024,
        help_heading = "Network",
        hide_short_help = true
    )]
    pub listen_backlog: i32,

    /// Protocol for clients: auto, ascii or binary [default: auto, or the one that -S or -Y
    /// requires]
    #[arg(
        short = 'B',
        long,
        value_name = "NAME",
        help_heading = "Network",
        hide_short_help = true
    )]
    pub protocol: Option<String>,

    /// Memory for items and their index, in MiB
    #[arg(short = 'm', long, value_name = "MB", default_value_t = 64, help_heading = "Memory")]
    pub memory_limit: usize,

    /// Return an error when memory is full instead of evicting items
    #[arg(short = 'M', long, help_heading = "Memory")]
    pub disable_evictions: bool,

    /// Maximum item size, 1024 bytes to 1 GiB; units: k, m, g
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m", value_parser = item_size, help_heading = "Memory")]
    pub max_item_size: usize,

    /// Do not store CAS values, which saves 8 bytes per item
    #[arg(short = 'C', long, help_heading = "Memory", hide_short_help = true)]
    pub disable_cas: bool,

    /// Keep items in this file on tmpfs, so that they survive a restart of the process
    #[arg(short = 'e', long, value_name = "FILE", help_heading = "Memory", hide_short_help = true)]
    pub memory_file: Option<PathBuf>,

    /// Lock all memory of the process, so that it is never swapped out
    #[arg(short = 'k', long, help_heading = "Memory", hide_short_help = true)]
    pub lock_memory: bool,

    /// Use transparent huge pages for items and index
    #[arg(
        short = 'L',
        long,
        visible_alias = "hugepages",
        help_heading = "Memory",
        hide_short_help = true
    )]
    pub enable_largepages: bool,

    /// Engine that stores the items
    #[arg(long, value_enum, default_value_t = EngineKind::Segment, help_heading = "Memory", hide_short_help = true)]
    pub engine: EngineKind,

    /// Eviction policy of --engine moka [default: lru]
    #[arg(long, value_enum, help_heading = "Memory", hide_short_help = true)]
    pub eviction_policy: Option<EvictionPolicy>,

    /// Weight of item size in eviction by --engine segment, 0 to 1 [default: 0.7]
    ///
    /// 0 ignores the size. 1 evicts the fewest items, at the cost of more missed bytes.
    #[arg(long, value_name = "X", help_heading = "Memory", hide_short_help = true)]
    pub size_exponent: Option<f64>,

    /// Number of worker threads
    #[arg(short = 't', long, value_name = "NUM", default_value_t = 4, help_heading = "Threads")]
    pub threads: usize,

    /// Maximum number of requests answered in a row for one connection (memcached: 20)
    #[arg(
        short = 'R',
        long,
        value_name = "NUM",
        default_value_t = 64,
        help_heading = "Threads",
        hide_short_help = true
    )]
    pub max_reqs_per_event: usize,

    /// Event loop that serves the connections
    #[arg(long, value_enum, default_value_t = Runtime::PerCore, help_heading = "Threads", hide_short_help = true)]
    pub runtime: Runtime,

    /// Pin each worker thread to one core
    #[arg(long, help_heading = "Threads", hide_short_help = true)]
    pub pin: bool,

    /// Serve TLS on TCP, with the files of -o ssl_chain_cert and -o ssl_key
    #[arg(short = 'Z', long, help_heading = "TLS")]
    pub enable_ssl: bool,

    /// Require logins in the text protocol; FILE has lines of user:password
    #[arg(short = 'Y', long, value_name = "FILE", help_heading = "Logins")]
    pub auth_file: Option<PathBuf>,

    /// Require SASL PLAIN logins and serve only the binary protocol; -Y takes precedence
    #[arg(short = 'S', long, help_heading = "Logins", hide_short_help = true)]
    pub enable_sasl: bool,

    /// Password file of -S, with lines of user:password [default: $MEMCACHED_SASL_PWDB]
    #[arg(long, value_name = "FILE", help_heading = "Logins", hide_short_help = true)]
    pub sasl_pwdb: Option<PathBuf>,

    /// Token file for HTTP and gRPC, with lines of NAME:TOKEN or, for read-only access,
    /// NAME:TOKEN:read
    #[arg(long, value_name = "FILE", help_heading = "Logins", hide_short_help = true)]
    pub token_file: Option<PathBuf>,

    /// Serve Prometheus metrics at this address: HOST, HOST:PORT or [V6]:PORT (default port: 9150)
    #[arg(long, value_name = "ADDR", help_heading = "HTTP and gRPC")]
    pub metrics_listen: Option<String>,

    /// Serve items, statistics and metrics over HTTP at this address (default port: 8080)
    ///
    /// PORT (on the loopback), HOST, HOST:PORT or [V6]:PORT; with -Z, the prefix notls:, mtls: or
    /// btls: as for -l.
    #[arg(long, value_name = "ADDR", help_heading = "HTTP and gRPC")]
    pub http_listen: Option<String>,

    /// Serve items and statistics over gRPC (larder.v1.Cache) at this address (default port: 50051)
    ///
    /// Takes the same forms as --http-listen, and may be the same address.
    #[arg(long, value_name = "ADDR", help_heading = "HTTP and gRPC", hide_short_help = true)]
    pub grpc_listen: Option<String>,

    /// Host names that HTTP clients may use for this server, in addition to IP addresses and
    /// localhost
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "http_listen",
        help_heading = "HTTP and gRPC",
        hide_short_help = true
    )]
    pub http_host: Vec<String>,

    /// Origins whose web pages may use HTTP (CORS), for example https://app.example
    #[arg(
        long,
        value_name = "ORIGIN,...",
        value_delimiter = ',',
        requires = "http_listen",
        help_heading = "HTTP and gRPC",
        hide_short_help = true
    )]
    pub http_cors: Vec<String>,

    /// Maximum number of HTTP and gRPC connections, not counted in -c; a new one replaces an idle
    /// one
    #[arg(
        long,
        value_name = "NUM",
        default_value_t = 256,
        help_heading = "HTTP and gRPC",
        hide_short_help = true
    )]
    pub gateway_conns: usize,

    /// Replicate all items to followers that connect to this address (default port: 11311)
    ///
    /// PORT (on the loopback), HOST, HOST:PORT or [V6]:PORT.
    #[arg(long, value_name = "ADDR", help_heading = "Replication")]
    pub replicate_on: Option<String>,

    /// Follow the leader whose --replicate-on is HOST:PORT, and serve only reads
    #[arg(long, value_name = "HOST:PORT", help_heading = "Replication")]
    pub follow: Option<String>,

    /// Memory for changes not yet sent to followers, in MiB, part of -m [default: 1/64 of -m, at
    /// least 4, at most 1/4 of -m]
    #[arg(
        long,
        value_name = "MB",
        requires = "replicate_on",
        help_heading = "Replication",
        hide_short_help = true
    )]
    pub journal_size: Option<usize>,

    /// Encrypt connections between nodes and verify both sides; PEM files of certificate, key and
    /// CA
    ///
    /// Addresses off the loopback, and logins of clients, require --cluster-tls
    /// or --cluster-secret.
    #[arg(long, value_name = "CERT,KEY,CA", help_heading = "Replication", hide_short_help = true)]
    pub cluster_tls: Option<NodeTlsFiles>,

    /// File with the secret that authenticates nodes to each other
    ///
    /// Addresses off the loopback, and logins of clients, require --cluster-tls
    /// or --cluster-secret.
    #[arg(long, value_name = "FILE", help_heading = "Replication", hide_short_help = true)]
    pub cluster_secret: Option<PathBuf>,

    /// Join the cluster of this name, where each group elects a leader; requires --replicate-on
    #[arg(
        long,
        value_name = "NAME",
        requires = "replicate_on",
        conflicts_with = "follow",
        help_heading = "Cluster"
    )]
    pub cluster: Option<String>,

    /// Group of this node
    #[arg(
        long,
        value_name = "NAME",
        default_value = "0",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub group: String,

    /// Unique name of this node [default: the host name]
    #[arg(
        long,
        value_name = "NAME",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub node: Option<String>,

    /// Address of this node for clients [default: the host of --replicate-on with the first TCP
    /// port]
    #[arg(
        long,
        value_name = "HOST:PORT",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub advertise: Option<String>,

    /// etcd servers, which store the cluster state
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub etcd: Vec<String>,

    /// CA certificates that verify the etcd servers, PEM
    #[arg(
        long,
        value_name = "FILE",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub etcd_ca: Option<PathBuf>,

    /// Client certificate for etcd, PEM
    #[arg(long, value_name = "FILE", requires_all = ["cluster", "etcd_key"], help_heading = "Cluster", hide_short_help = true)]
    pub etcd_cert: Option<PathBuf>,

    /// Private key of --etcd-cert, PEM
    #[arg(long, value_name = "FILE", requires_all = ["cluster", "etcd_cert"], help_heading = "Cluster", hide_short_help = true)]
    pub etcd_key: Option<PathBuf>,

    /// File with NAME:PASSWORD for etcd
    #[arg(
        long,
        value_name = "FILE",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub etcd_password: Option<PathBuf>,

    /// Changes that wait for every in-sync member before they are answered
    #[arg(
        long,
        value_enum,
        default_value = "deletes",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub ack: Ack,

    /// Leader behaviour when neither etcd nor every in-sync member is reachable
    #[arg(
        long,
        value_enum,
        default_value = "stop",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub doubt: Doubt,

    /// Let a member with incomplete data lead after this many seconds without a leader [default:
    /// never]
    #[arg(
        long,
        value_name = "SECS",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub unclean_after: Option<u64>,

    /// Answer reads on followers that lag by at most this many seconds; 0: read only from the
    /// leader
    #[arg(
        long,
        value_name = "SECS",
        default_value = "0",
        requires = "cluster",
        help_heading = "Cluster",
        hide_short_help = true
    )]
    pub read_lag: u32,

    /// Enable the shutdown command
    #[arg(short = 'A', long, help_heading = "Commands", hide_short_help = true)]
    pub enable_shutdown: bool,

    /// Disable flush_all, also over HTTP and gRPC
    #[arg(short = 'F', long, help_heading = "Commands", hide_short_help = true)]
    pub disable_flush_all: bool,

    /// Disable dumps of keys: lru_crawler metadump and mgdump, stats cachedump, stats detail, SCAN,
    /// KEYS, lists over HTTP
    #[arg(short = 'X', long, help_heading = "Commands", hide_short_help = true)]
    pub disable_dumping: bool,

    /// Disable the watch command, and Watch over gRPC
    #[arg(short = 'W', long, help_heading = "Commands", hide_short_help = true)]
    pub disable_watch: bool,

    /// Collect stats detail from the start, with this delimiter after the prefix of a key [default:
    /// :]
    #[arg(short = 'D', long, value_name = "CHAR", value_parser = delimiter, help_heading = "Commands", hide_short_help = true)]
    pub prefix_delimiter: Option<u8>,

    /// Run in the background as a daemon, after all addresses are bound
    #[arg(short = 'd', long, help_heading = "Process")]
    pub daemon: bool,

    /// Switch to this user when started as root
    #[arg(short = 'u', long, value_name = "USER", help_heading = "Process")]
    pub user: Option<String>,

    /// Write the process ID to this file, and remove the file at exit
    #[arg(
        short = 'P',
        long,
        value_name = "FILE",
        help_heading = "Process",
        hide_short_help = true
    )]
    pub pidfile: Option<PathBuf>,

    /// Raise the core file limit to the maximum
    #[arg(short = 'r', long, help_heading = "Process", hide_short_help = true)]
    pub enable_coredumps: bool,

    /// Log more; -v: server events, -vv: also connections, -vvv: everything (the watch command
    /// shows requests)
    #[arg(short = 'v', long, action = ArgAction::Count, help_heading = "Logging")]
    pub verbose: u8,

    /// Accepted for memcached compatibility: connections go to threads round-robin
    #[arg(
        short = 'N',
        long = "napi_ids",
        alias = "napi-ids",
        value_name = "NUM",
        help_heading = "No effect",
        hide_short_help = true
    )]
    pub napi_ids: Option<u32>,

    /// Accepted for memcached compatibility: there are no slab classes
    #[arg(
        short = 'f',
        long,
        value_name = "FACTOR",
        help_heading = "No effect",
        hide_short_help = true
    )]
    pub slab_growth_factor: Option<f64>,

    /// Accepted for memcached compatibility: there are no slab classes
    #[arg(
        short = 'n',
        long,
        value_name = "BYTES",
        help_heading = "No effect",
        hide_short_help = true
    )]
    pub slab_min_size: Option<usize>,

    /// Extended options, separated by commas: flash, TLS files, timeouts and others
    #[arg(short = 'o', long, value_name = "LIST", help_heading = "General")]
    pub extended: Vec<String>,

    /// The parsed extended options.
    #[arg(skip)]
    pub suboptions: Suboptions,

    /// Read options from this TOML file; its keys are the long option names
    #[arg(long, value_name = "FILE", help_heading = "General")]
    pub config: Option<PathBuf>,

    /// Check the options, print the result and exit
    #[arg(long, help_heading = "General", hide_short_help = true)]
    pub check_config: bool,

    /// Print the licence and exit
    #[arg(short = 'i', long, help_heading = "General", hide_short_help = true)]
    pub license: bool,

    /// Print the version and exit
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "General")]
    version: Option<bool>,

    /// Print help (-h: the most used options, --help: all options)
    #[arg(short = 'h', long, action = ArgAction::Help, help_heading = "General")]
    help: Option<bool>,
}

const MIB: usize = 1 << 20;

impl Options {
    /// Returns the number of cache handles that serve clients: one per worker, and one more if the
    /// server serves HTTP or gRPC.
    #[must_use]
    pub fn handles(&self) -> usize {
        self.threads + usize::from(self.has_web())
    }

    /// Returns the number of cache handles that answer requests forwarded by other nodes; 0 without
    /// `--cluster`.
    #[must_use]
    pub fn answerers(&self) -> usize {
        if self.cluster.is_some() { self.threads } else { 0 }
    }

    /// Returns the number of cache handles that can change items: [`Self::handles`] plus
    /// [`Self::answerers`]. With `--follow` or `--cluster`, one more handle applies a leader's
    /// changes. With `--cluster`, a further handle imports slots.
    #[must_use]
    pub fn writers(&self) -> usize {
        let follows = self.follow.is_some() || self.cluster.is_some();
        let imports = self.cluster.is_some();
        self.handles() + self.answerers() + usize::from(follows) + usize::from(imports)
    }

    /// Returns the name of this node in its cluster: the value of `--node`, or else the host name,
    /// or else `larderd`.
    #[must_use]
    pub fn node_name(&self) -> String {
        let machine = || nix::unistd::gethostname().ok()?.into_string().ok();
        self.node.clone().or_else(machine).unwrap_or_else(|| "larderd".to_owned())
    }

    /// Returns the memory for journals in bytes; 0 without `--replicate-on`.
    #[must_use]
    pub fn journal_bytes(&self) -> usize {
        if self.replicate_on.is_none() {
            return 0;
        }
        let usual = (self.limit_bytes() / 64).max(4 * MIB).min(self.limit_bytes() / 4);
        self.journal_size.map_or(usual, |mib| mib.saturating_mul(MIB))
    }

    /// Returns whether the server has a thread for HTTP and gRPC.
    #[must_use]
    pub fn has_web(&self) -> bool {
        self.http_listen.is_some() || self.grpc_listen.is_some()
    }

    /// Returns larderd's command-line parser. Its `-h` output contains the names of all options.
    fn full_command() -> Command {
        help::with_other_names(Self::command())
    }

    /// Parses and checks a command line into which the settings of all sources were merged.
    fn read_words(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, OptionsError> {
        let matches =
            Self::full_command().try_get_matches_from(arguments).map_err(OptionsError::Clap)?;
        let mut options = Self::from_arg_matches(&matches).map_err(OptionsError::Clap)?;
        // `-U` without `-p` sets both ports.
        if options.udp_port != 0 && matches.value_source("port") == Some(ValueSource::DefaultValue)
        {
            options.port = options.udp_port;
        }
        let lists = options.extended.iter().map(String::as_str);
        options.suboptions = Suboptions::parse(lists).map_err(OptionsError::Refused)?;
        options.check().map_err(OptionsError::Refused)?;
        Ok(options)
    }

    fn make_paths_absolute(&mut self) {
        let (tls, image) = (&mut self.suboptions.tls, &mut self.suboptions.memory_image);
        let secret = &mut self.cluster_secret;
        let [ca, cert, key, password] =
            [&mut self.etcd_ca, &mut self.etcd_cert, &mut self.etcd_key, &mut self.etcd_password];
        let of_etcd = [ca, cert, key, password].into_iter().flatten();
        of_etcd.for_each(|path| *path = std::path::absolute(&path).unwrap_or_default());
        let paths =
            [secret, &mut self.pidfile, image, &mut tls.chain_cert, &mut tls.key, &mut tls.ca_cert];
        let of_nodes =
            self.cluster_tls.iter_mut().flat_map(|tls| [&mut tls.cert, &mut tls.key, &mut tls.ca]);
        let files = self.suboptions.flash.files.iter_mut().map(|file| &mut file.path);
        for path in paths.into_iter().flatten().chain(of_nodes).chain(files) {
            // absolute() fails only for an empty path, which cannot be opened anyway.
            *path = std::path::absolute(&path).unwrap_or_default();
        }
    }

    /// Returns the log verbosity: the number of `-v` options.
    #[must_use]
    pub fn verbosity(&self) -> u32 {
        self.verbose.into()
    }

    /// Returns the memory limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.memory_limit.saturating_mul(MIB)
    }

    /// Returns the exponent of the item size in eviction (`--size-exponent`), or its default.
    #[must_use]
    pub fn size_exponent(&self) -> f64 {
        self.size_exponent.unwrap_or(SIZE_EXPONENT)
    }

    /// Returns the given options that have no effect, each with its name on the command line and
    /// the reason.
    #[must_use]
    pub fn without_effect(&self) -> Vec<(String, &'static str)> {
        let given = [
            (self.slab_growth_factor.is_some(), "-f", "there are no slab classes"),
            (self.slab_min_size.is_some(), "-n", "there are no slab classes"),
            (
                self.enable_largepages && !self.engine.is_segment(),
                "-L",
                "this engine allocates its memory on the heap",
            ),
            (
                self.size_exponent.is_some() && self.disable_evictions,
                "--size-exponent",
                "-M disables evictions",
            ),
            (self.napi_ids.is_some(), "-N", "connections go to threads round-robin"),
        ];
        let short = given.into_iter().filter(|given| given.0);
        let extended = self.suboptions.without_effect.iter();
        let extended = extended.map(|(name, reason)| (format!("-o {name}"), *reason));
        short.map(|(_, name, reason)| (name.to_owned(), reason)).chain(extended).collect()
    }
}

/// The reason why a command line does not start a server.
#[derive(Debug)]
pub enum OptionsError {
    /// Help, the version, or a syntax error.
    Clap(clap::Error),
    /// A refusal of the options.
    Refused(OptionsRefusal),
}

#[cfg(test)]
mod tests {
    use super::refusal::USAGE;
    use super::*;

    fn parse(line: &str) -> Options {
        let words = std::iter::once("larderd").chain(line.split_whitespace());
        Options::try_parse_from(words).unwrap()
    }

    fn refusal(line: &str) -> (u8, String) {
        let OptionsRefusal { message, status } = parse(line).check().unwrap_err();
        (status, message)
    }

    #[test]
    fn command_lines_of_memcached_are_accepted() {
        let line =
            "-p11212 -U 0 -m128 -c 2048 -t2 -R 20 -C -F -b 512 -I 2m -l 127.0.0.1,[::1]:7 -vv";
        let options = parse(line);
        assert!(options.check().is_ok());
        assert_eq!((options.port, options.memory_limit, options.threads), (11212, 128, 2));
        assert_eq!((options.conn_limit, options.max_reqs_per_event), (2048, 20));
        assert_eq!(options.max_item_size, 2 << 20);
        assert_eq!(options.listen, ["127.0.0.1", "[::1]:7"]);
        assert_eq!(options.verbosity(), 2);
        assert!(options.disable_cas && options.disable_flush_all);
        let long = parse("--port=-1 --memory-limit 64 --max-item-size=512k --unix-mask=777");
        assert_eq!((long.port, long.max_item_size, long.unix_mask), (-1, 512 << 10, 0o777));
    }

    #[test]
    fn invalid_values_are_refused_with_the_status_of_memcached() {
        assert_eq!(refusal("-c 0"), (1, "Maximum connections must be greater than 0".to_owned()));
        assert_eq!(refusal("-t 0").0, 1);
        assert_eq!(refusal("-f 1").0, 1);
        assert_eq!(refusal("-I 1000").0, 64);
        assert_eq!(refusal("-I 40m").0, 64);
        assert_eq!(refusal("-I 2g -m 8192").0, 64);
        assert_eq!(refusal("-U 70000").0, 64);
        assert!(refusal("--eviction-policy lru").1.contains("moka"));
    }

    #[test]
    #[cfg(all(feature = "dashmap", feature = "moka"))]
    fn options_that_an_engine_does_not_have_are_refused() {
        assert!(refusal("--engine dashmap").1.contains("-M"));
        assert!(refusal("--engine moka -M").1.contains("-M"));
        for engine in ["moka", "dashmap -M"] {
            let (status, message) = refusal(&format!("--size-exponent 0.5 --engine {engine}"));
            assert_eq!(status, USAGE, "{engine}");
            assert!(message.contains("requires --engine segment"), "{engine}: {message}");
        }
    }

    #[test]
    fn an_engine_that_is_not_in_the_build_is_refused() {
        for (engine, options, is_built) in [
            ("dashmap", "-M", cfg!(feature = "dashmap")),
            ("moka", "", cfg!(feature = "moka")),
            ("segment", "", true),
        ] {
            let checked = parse(&format!("--engine {engine} {options}")).check();
            let message =
                format!("--engine {engine}: larderd was built without the feature {engine}");
            let refused = Err(OptionsRefusal { message, status: USAGE });
            assert_eq!(checked, if is_built { Ok(()) } else { refused });
        }
    }

    #[test]
    fn the_size_exponent_is_0_to_1() {
        // The help contains the default as a string.
        assert_eq!(parse("").size_exponent().to_string(), "0.7");
        for (given, exponent) in [("0", 0.0), ("0.25", 0.25), ("1", 1.0)] {
            let options = parse(&format!("--size-exponent {given}"));
            assert!(options.check().is_ok(), "{given}");
            assert!((options.size_exponent() - exponent).abs() < f64::EPSILON, "{given}");
        }
        for given in ["-0.1", "1.01", "NaN", "inf"] {
            let (status, message) = refusal(&format!("--size-exponent {given}"));
            assert_eq!((status, &*message), (1, "The size exponent must be 0 to 1"), "{given}");
        }
        let without_effect = parse("--size-exponent 0.5 -M").without_effect();
        assert_eq!(without_effect.len(), 1);
        assert_eq!(without_effect[0].0, "--size-exponent");
    }
}
