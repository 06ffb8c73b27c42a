//! The command line: memcached's options where they have a meaning here, and Larder's own.

mod address;
mod check;
mod file;
pub mod flash;
mod layers;
mod misuse;
mod suboption_list;
mod suboption_table;
pub mod suboptions;

pub use larder_support::tls::Tls;
pub use misuse::Misuse;
pub use suboptions::Suboptions;

use crate::process::version;
use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, ValueEnum};
use larder_cluster::NodeTlsFiles;
use larder_store::eviction::SIZE_EXPONENT;
use larder_store::journal::AckMode;
use std::ffi::OsString;
use std::path::PathBuf;

/// Larder, a cache server for memcached's clients.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "larderd",
    about,
    version = version::LARDER,
    disable_version_flag = true,
    args_override_self = true,
    allow_negative_numbers = true,
    after_help = suboption_list::help()
)]
#[expect(clippy::struct_excessive_bools, reason = "each is one switch of the command line")]
pub struct Options {
    /// TCP port to listen on: 0 is none, -1 any free port
    #[arg(
        short = 'p',
        long,
        value_name = "NUM",
        default_value_t = 11211,
        allow_hyphen_values = true
    )]
    pub port: i32,

    /// UDP port to listen on: 0 is none, -1 any free port; without -l, on the loopback alone
    #[arg(short = 'U', long, value_name = "NUM", default_value_t = 0, allow_hyphen_values = true)]
    pub udp_port: i32,

    /// Path of a unix socket to listen on, instead of TCP and UDP
    #[arg(short = 's', long, value_name = "FILE")]
    pub unix_socket: Option<PathBuf>,

    /// Permissions of the unix socket, in octal
    #[arg(short = 'a', long, value_name = "MASK", default_value = "700", value_parser = octal)]
    pub unix_mask: u32,

    /// Let clients end the server with the shutdown command
    #[arg(short = 'A', long)]
    pub enable_shutdown: bool,

    /// Addresses to listen on, separated by commas: HOST, HOST:PORT, [V6]:PORT or *. Before an
    /// address, proto[ascii]:, proto[binary]: or proto[negotiating]: counts more than -B there, and
    /// proto[resp]: serves Redis's protocol; before that, under -Z, notls: is for clients without TLS,
    /// mtls: for clients with a certificate, btls: for clients without one
    #[arg(short = 'l', long, value_name = "ADDR", value_delimiter = ',')]
    pub listen: Vec<String>,

    /// Address at which Prometheus finds metrics, over HTTP and without a login: HOST, HOST:PORT or
    /// [V6]:PORT, with port 9150 if none is given
    #[arg(long, value_name = "ADDR")]
    pub metrics_listen: Option<String>,

    /// Address at which items, statistics and metrics are found over HTTP: PORT on the loopback, HOST,
    /// HOST:PORT or [V6]:PORT, with port 8080 if none is given; under -Z, with notls:, mtls: or btls: before
    /// it, as for -l
    #[arg(long, value_name = "ADDR")]
    pub http_listen: Option<String>,

    /// Address at which items and statistics are found over gRPC (larder.v1.Cache): PORT on the loopback, HOST,
    /// HOST:PORT or [V6]:PORT, with port 50051 if none is given; it may be that of HTTP, and have the same
    /// prefixes
    #[arg(long, value_name = "ADDR")]
    pub grpc_listen: Option<String>,

    /// Names that HTTP clients may have for this server, separated by commas, beside addresses and localhost
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "http_listen")]
    pub http_host: Vec<String>,

    /// Web sites whose pages may use HTTP, separated by commas, as in https://app.example
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', requires = "http_listen")]
    pub http_cors: Vec<String>,

    /// Connections of HTTP and gRPC that may be open at the same time, beside those of -c; others take the places
    /// of idle ones
    #[arg(long, value_name = "NUM", default_value_t = 256)]
    pub gateway_conns: usize,

    /// File of tokens with which clients of HTTP and gRPC log in: NAME:TOKEN, or NAME:TOKEN:read for one that may
    /// not change anything, a line each
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Keep a copy of the items of this leader, HOST:PORT of its --replicate-on, and serve reads alone
    #[arg(long, value_name = "HOST:PORT")]
    pub follow: Option<String>,

    /// Address at which followers get copies of all items: PORT on the loopback, HOST, HOST:PORT or [V6]:PORT,
    /// with port 11311 if none is given
    #[arg(long, value_name = "ADDR")]
    pub replicate_on: Option<String>,

    /// Memory for the keys of changes that followers have not been sent yet, in MiB, out of -m [default: 1/64
    /// of -m, at least 4, at most a quarter of -m]
    #[arg(long, value_name = "MB", requires = "replicate_on")]
    pub journal_size: Option<usize>,

    /// Take part in the cluster of this name: one member of each group leads, and others take its place (needs
    /// --replicate-on)
    #[arg(long, value_name = "NAME", requires = "replicate_on", conflicts_with = "follow")]
    pub cluster: Option<String>,

    /// Servers of etcd, which keeps who leads, separated by commas
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379",
        requires = "cluster"
    )]
    pub etcd: Vec<String>,

    /// Certificates, in PEM, of those who certify the servers of etcd
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub etcd_ca: Option<PathBuf>,

    /// Certificate, in PEM, that is shown to etcd
    #[arg(long, value_name = "FILE", requires_all = ["cluster", "etcd_key"])]
    pub etcd_cert: Option<PathBuf>,

    /// Private key of --etcd-cert, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["cluster", "etcd_cert"])]
    pub etcd_key: Option<PathBuf>,

    /// File with NAME:PASSWORD for etcd
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub etcd_password: Option<PathBuf>,

    /// Name of this node, which no other one may have [default: the name of the machine]
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub node: Option<String>,

    /// Group of this node
    #[arg(long, value_name = "NAME", default_value = "0", requires = "cluster")]
    pub group: String,

    /// Address at which clients find this node [default: the first TCP port, on the host of --replicate-on]
    #[arg(long, value_name = "HOST:PORT", requires = "cluster")]
    pub advertise: Option<String>,

    /// Which changes are answered only when all members that are in sync have them
    #[arg(long, value_enum, default_value = "deletes", requires = "cluster")]
    pub ack: Ack,

    /// What a leader does that can reach neither etcd nor all members that are in sync
    #[arg(long, value_enum, default_value = "stop", requires = "cluster")]
    pub doubt: InDoubt,

    /// Seconds after which a member leads that may lack items, if there is no other leader [default: never]
    #[arg(long, value_name = "SECS", requires = "cluster")]
    pub unclean_after: Option<u64>,

    /// Seconds that a copy may be behind its leader for look-ups to be answered from it; 0: the leader answers all
    #[arg(long, value_name = "SECS", default_value = "0", requires = "cluster")]
    pub read_lag: u32,

    /// Certificate, private key and CA certificates, in PEM: connections between nodes are encrypted, and each side
    /// requires a certificate of the CA of the other one; this or --cluster-secret is needed off the loopback
    #[arg(long, value_name = "CERT,KEY,CA")]
    pub cluster_tls: Option<NodeTlsFiles>,

    /// File with the secret that --replicate-on and --follow require of the other side; this or --cluster-tls is
    /// needed off the loopback
    #[arg(long, value_name = "FILE")]
    pub cluster_secret: Option<PathBuf>,

    /// Run in the background as a daemon, once all addresses are bound
    #[arg(short = 'd', long)]
    pub daemon: bool,

    /// Raise the limit of core files to the highest that the system allows
    #[arg(short = 'r', long)]
    pub enable_coredumps: bool,

    /// User to become when started as root
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,

    /// Write the process id to this file, and remove the file at the end
    #[arg(short = 'P', long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,

    /// Memory for items and their index, in MiB
    #[arg(short = 'm', long, value_name = "MB", default_value_t = 64)]
    pub memory_limit: usize,

    /// Answer stores with an error when memory is full, instead of evicting items
    #[arg(short = 'M', long)]
    pub disable_evictions: bool,

    /// Lock all memory, so that none of it is swapped out
    #[arg(short = 'k', long)]
    pub lock_memory: bool,

    /// Connections that may be open at the same time
    #[arg(short = 'c', long, value_name = "NUM", default_value_t = 1024)]
    pub conn_limit: usize,

    /// Worker threads that answer requests
    #[arg(short = 't', long, value_name = "NUM", default_value_t = 4)]
    pub threads: usize,

    /// Connections that may wait to be accepted, for each address (the backlog of listen)
    #[arg(short = 'b', long, value_name = "NUM", default_value_t = 1024)]
    pub listen_backlog: i32,

    /// Size of the largest item, 1024 bytes to 1 GiB; units are k, m and g
    #[arg(short = 'I', long, value_name = "NUM", default_value = "1m", value_parser = item_size)]
    pub max_item_size: usize,

    /// Requests that are answered for one connection before the next connection has its turn;
    /// memcached has 20
    #[arg(short = 'R', long, value_name = "NUM", default_value_t = 64)]
    pub max_reqs_per_event: usize,

    /// Keep no CAS values, which saves 8 bytes an item
    #[arg(short = 'C', long)]
    pub disable_cas: bool,

    /// Refuse the command flush_all
    #[arg(short = 'F', long)]
    pub disable_flush_all: bool,

    /// Refuse dumps of keys: lru_crawler metadump and mgdump, stats cachedump, stats detail
    #[arg(short = 'X', long)]
    pub disable_dumping: bool,

    /// Refuse the command watch
    #[arg(short = 'W', long)]
    pub disable_watch: bool,

    /// Count requests by the part of a key before this character, from the start; without -D they
    /// are counted after `stats detail on` [default: :]
    #[arg(short = 'D', long, value_name = "CHAR", value_parser = delimiter)]
    pub prefix_delimiter: Option<u8>,

    /// Ask for logins by SASL PLAIN, and serve the binary protocol alone; -Y counts more. The
    /// passwords are in --sasl-pwdb
    #[arg(short = 'S', long)]
    pub enable_sasl: bool,

    /// File of passwords for -S, with lines of user:password [default: the file that the variable
    /// MEMCACHED_SASL_PWDB names]
    #[arg(long, value_name = "FILE")]
    pub sasl_pwdb: Option<PathBuf>,

    /// Ask for logins by text, and serve the text protocol alone; FILE has lines of user:password
    #[arg(short = 'Y', long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,

    /// Protocol that clients may speak: auto, ascii or binary [default: auto, or the one of -S or -Y]
    #[arg(short = 'B', long, value_name = "NAME")]
    pub protocol: Option<String>,

    /// Serve TLS on TCP, with the certificate and key of -o ssl_chain_cert and ssl_key
    #[arg(short = 'Z', long)]
    pub enable_ssl: bool,

    /// Extended options, separated by commas; they are listed below
    #[arg(short = 'o', long, value_name = "LIST", value_delimiter = ',')]
    pub extended: Vec<String>,

    /// What the extended options say.
    #[arg(skip)]
    pub suboptions: Suboptions,

    /// Keep items in this file, on tmpfs, so that they outlive the process
    #[arg(short = 'e', long, value_name = "FILE")]
    pub memory_file: Option<PathBuf>,

    /// Ask the kernel for transparent huge pages for items and index
    #[arg(short = 'L', long, visible_alias = "hugepages")]
    pub enable_largepages: bool,

    /// No effect: connections go to threads in turn
    #[arg(short = 'N', long = "napi_ids", alias = "napi-ids", value_name = "NUM")]
    pub napi_ids: Option<u32>,

    /// No effect: there are no slab classes
    #[arg(short = 'f', long, value_name = "FACTOR")]
    pub slab_growth_factor: Option<f64>,

    /// No effect: there are no slab classes
    #[arg(short = 'n', long, value_name = "BYTES")]
    pub slab_min_size: Option<usize>,

    /// Engine that stores the items
    #[arg(long, value_enum, default_value_t = EngineKind::Segment)]
    pub engine: EngineKind,

    /// Items that --engine moka evicts first [default: lru]
    #[arg(long, value_enum)]
    pub eviction_policy: Option<EvictionPolicy>,

    /// How much the size of an item counts when --engine segment evicts, from 0, not at all, to 1,
    /// where the fewest items are evicted but more bytes are missed [default: 0.7]
    #[arg(long, value_name = "X")]
    pub size_exponent: Option<f64>,

    /// Event loop that serves the connections
    #[arg(long, value_enum, default_value_t = Runtime::PerCore)]
    pub runtime: Runtime,

    /// Bind each worker thread to a core of its own
    #[arg(long)]
    pub pin: bool,

    /// Log more: -v events of the server, -vv also connections, -vvv everything. Requests are shown
    /// by the command watch
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub verbose: u8,

    /// TOML file of options; its keys are the long names of this list
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check the options, print the result, and exit
    #[arg(long)]
    pub check_config: bool,

    /// Print the licence and exit
    #[arg(short = 'i', long)]
    pub license: bool,

    /// Print the version and exit
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// The engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// Larder's own: items in segments of one mapping
    Segment,
    /// The moka crate: items on the heap
    Moka,
    /// The dashmap crate: items on the heap, none is ever evicted; needs -M
    Dashmap,
    /// The segment engine, whose look-ups are answered late at random: for tests of what waits
    #[value(hide = true)]
    Delayed,
}

impl EngineKind {
    /// Whether the segment engine stores the items.
    pub(crate) fn is_segment(self) -> bool {
        matches!(self, Self::Segment | Self::Delayed)
    }
}

/// What moka drops first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EvictionPolicy {
    /// The item that was used longest ago
    Lru,
    /// The item that is used least often
    TinyLfu,
}

/// Which changes are answered only when others have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ack {
    /// None
    None,
    /// Those after which nobody may find an item as it was
    Deletes,
    /// All
    Writes,
}

impl From<Ack> for AckMode {
    fn from(ack: Ack) -> Self {
        match ack {
            Ack::None => Self::None,
            Ack::Deletes => Self::Deletes,
            Ack::Writes => Self::Writes,
        }
    }
}

/// What a leader does that can't know whether it still leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InDoubt {
    /// Answer nothing about items
    Stop,
    /// Go on
    Serve,
}

/// The drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runtime {
    /// One event loop for each thread
    PerCore,
    /// One current-thread runtime of Tokio for each thread
    TokioCurrentThread,
    /// One work-stealing runtime of Tokio for all threads
    TokioMultiThread,
}

const MIB: usize = 1 << 20;

impl Options {
    /// The threads that answer requests with a handle to the cache: workers, and the one of HTTP and gRPC.
    #[must_use]
    pub fn handles(&self) -> usize {
        self.threads + usize::from(self.has_web())
    }

    /// The handles to the cache with which requests of other members are answered.
    #[must_use]
    pub fn answerers(&self) -> usize {
        if self.cluster.is_some() { self.threads } else { 0 }
    }

    /// The handles that write to the cache: those, and the ones of the threads that follow a leader and take slots over.
    #[must_use]
    pub fn writers(&self) -> usize {
        let follows = self.follow.is_some() || self.cluster.is_some();
        let takes = self.cluster.is_some();
        self.handles() + self.answerers() + usize::from(follows) + usize::from(takes)
    }

    /// The name of this node in its cluster.
    #[must_use]
    pub fn node_name(&self) -> String {
        let machine = || nix::unistd::gethostname().ok()?.into_string().ok();
        self.node.clone().or_else(machine).unwrap_or_else(|| "larderd".to_owned())
    }

    /// The memory for journals, in bytes.
    #[must_use]
    pub fn journal_bytes(&self) -> usize {
        if self.replicate_on.is_none() {
            return 0;
        }
        let usual = (self.limit_bytes() / 64).max(4 * MIB).min(self.limit_bytes() / 4);
        self.journal_size.map_or(usual, |mib| mib.saturating_mul(MIB))
    }

    /// Whether there is a thread for HTTP and gRPC.
    #[must_use]
    pub fn has_web(&self) -> bool {
        self.http_listen.is_some() || self.grpc_listen.is_some()
    }

    /// Reads a command line that contains the settings of all sources.
    fn read_words(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, OptionsError> {
        let matches =
            Self::command().try_get_matches_from(arguments).map_err(OptionsError::Clap)?;
        let mut options = Self::from_arg_matches(&matches).map_err(OptionsError::Clap)?;
        // `-U` without `-p` sets both ports.
        if options.udp_port != 0 && matches.value_source("port") == Some(ValueSource::DefaultValue)
        {
            options.port = options.udp_port;
        }
        let lists = options.extended.iter().map(String::as_str);
        options.suboptions = Suboptions::parse(lists).map_err(OptionsError::Misuse)?;
        options.check().map_err(OptionsError::Misuse)?;
        Ok(options)
    }

    fn make_paths_absolute(&mut self) {
        let tls = &mut self.suboptions.tls;
        let secret = &mut self.cluster_secret;
        let [ca, cert, key, password] =
            [&mut self.etcd_ca, &mut self.etcd_cert, &mut self.etcd_key, &mut self.etcd_password];
        let of_etcd = [ca, cert, key, password].into_iter().flatten();
        of_etcd.for_each(|path| *path = std::path::absolute(&path).unwrap_or_default());
        let paths =
            [secret, &mut self.pidfile, &mut tls.chain_cert, &mut tls.key, &mut tls.ca_cert];
        let of_nodes =
            self.cluster_tls.iter_mut().flat_map(|tls| [&mut tls.cert, &mut tls.key, &mut tls.ca]);
        let files = self.suboptions.flash.files.iter_mut().map(|file| &mut file.path);
        for path in paths.into_iter().flatten().chain(of_nodes).chain(files) {
            // It fails only for an empty path, which fails again when it is opened.
            *path = std::path::absolute(&path).unwrap_or_default();
        }
    }

    /// The verbosity of the log, in memcached's levels.
    #[must_use]
    pub fn verbosity(&self) -> u32 {
        self.verbose.into()
    }

    /// The memory limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.memory_limit.saturating_mul(MIB)
    }

    /// The exponent of item size in eviction, given or not.
    #[must_use]
    pub fn size_exponent(&self) -> f64 {
        self.size_exponent.unwrap_or(SIZE_EXPONENT)
    }

    /// The options that were given and have no effect: the name on the command line, and the reason.
    #[must_use]
    pub fn without_effect(&self) -> Vec<(String, &'static str)> {
        let given = [
            (self.slab_growth_factor.is_some(), "-f", "there are no slab classes"),
            (self.slab_min_size.is_some(), "-n", "there are no slab classes"),
            (
                self.enable_largepages && !self.engine.is_segment(),
                "-L",
                "this engine takes its memory from the allocator",
            ),
            (
                self.size_exponent.is_some() && self.disable_evictions,
                "--size-exponent",
                "no items are evicted under -M",
            ),
            (self.napi_ids.is_some(), "-N", "connections go to threads in turn"),
        ];
        let short = given.into_iter().filter(|given| given.0);
        let extended = self.suboptions.without_effect.iter();
        let extended = extended.map(|(name, why)| (format!("-o {name}"), *why));
        short.map(|(_, name, why)| (name.to_owned(), why)).chain(extended).collect()
    }
}

/// A command line that does not start a server.
#[derive(Debug)]
pub enum OptionsError {
    /// Help, the version, or a command line that cannot be parsed.
    Clap(clap::Error),
    /// Options that are refused.
    Misuse(Misuse),
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [delimiter, ..] => Ok(*delimiter),
        [] => Err("no delimiter specified".to_owned()),
    }
}

fn octal(text: &str) -> Result<u32, String> {
    let mask = u32::from_str_radix(text, 8).map_err(|_| format!("{text} is not octal"))?;
    if mask <= 0o777 { Ok(mask) } else { Err(format!("{text} is not a file mode")) }
}

fn item_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number = digits.parse::<usize>().map_err(|_| format!("{text} is not a size"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::misuse::USAGE;
    use super::*;

    fn parse(line: &str) -> Options {
        let words = std::iter::once("larderd").chain(line.split_whitespace());
        Options::try_parse_from(words).unwrap()
    }

    fn misuse(line: &str) -> (u8, String) {
        let Misuse { message, status } = parse(line).check().unwrap_err();
        (status, message)
    }

    #[test]
    fn memcacheds_lines_are_understood() {
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
    fn what_cannot_be_done_is_said() {
        assert_eq!(misuse("-c 0"), (1, "Maximum connections must be greater than 0".to_owned()));
        assert_eq!(misuse("-t 0").0, 1);
        assert_eq!(misuse("-f 1").0, 1);
        assert_eq!(misuse("-I 1000").0, 64);
        assert_eq!(misuse("-I 40m").0, 64);
        assert_eq!(misuse("-I 2g -m 8192").0, 64);
        assert_eq!(misuse("-U 70000").0, 64);
        assert!(misuse("--eviction-policy lru").1.contains("moka"));
    }

    #[test]
    #[cfg(all(feature = "dashmap", feature = "moka"))]
    fn options_that_an_engine_does_not_have_are_refused() {
        assert!(misuse("--engine dashmap").1.contains("-M"));
        assert!(misuse("--engine moka -M").1.contains("-M"));
        for engine in ["moka", "dashmap -M"] {
            let (status, message) = misuse(&format!("--size-exponent 0.5 --engine {engine}"));
            assert_eq!(status, USAGE, "{engine}");
            assert!(message.contains("--engine segment alone"), "{engine}: {message}");
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
            let refused = Err(Misuse { message, status: USAGE });
            assert_eq!(checked, if is_built { Ok(()) } else { refused });
        }
    }

    #[test]
    fn the_size_exponent_is_0_to_1() {
        // The help has the default as text.
        assert_eq!(parse("").size_exponent().to_string(), "0.7");
        for (given, exponent) in [("0", 0.0), ("0.25", 0.25), ("1", 1.0)] {
            let options = parse(&format!("--size-exponent {given}"));
            assert!(options.check().is_ok(), "{given}");
            assert!((options.size_exponent() - exponent).abs() < f64::EPSILON, "{given}");
        }
        for given in ["-0.1", "1.01", "NaN", "inf"] {
            let (status, message) = misuse(&format!("--size-exponent {given}"));
            assert_eq!((status, &*message), (1, "The size exponent must be 0 to 1"), "{given}");
        }
        let without_effect = parse("--size-exponent 0.5 -M").without_effect();
        assert_eq!(without_effect.len(), 1);
        assert_eq!(without_effect[0].0, "--size-exponent");
    }
}
