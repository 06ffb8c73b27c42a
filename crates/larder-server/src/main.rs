//! `larderd`: reads the command line, binds, starts the engine that was chosen, and serves.

use clap::error::ErrorKind;
use larder_cluster::{Credentials, NodeThreads, NodeTls, ReplicatedCache, SessionHost, addresses};
use larder_operations::Limits;
use larder_replica::{SECRET_LEN_MIN, Secret};
use larder_server::auth::TokenFile;
use larder_server::driver::Sockets;
#[cfg(feature = "metrics")]
use larder_server::gateway::Gateway;
use larder_server::log::verbosity::Verbosity;
use larder_server::memory::Memory;
use larder_server::memory::memory_file::{self, Files, Start};
use larder_server::memory::{flash, slab_classes};
use larder_server::net::listener::{GatewaySocket, GatewaySockets, Listener};
use larder_server::net::{activation, listener, udp};
use larder_server::options::{EngineKind, Options, OptionsError};
use larder_server::process::life_cycle::{LifeCycle, Phase};
use larder_server::process::pid_file::PidFile;
use larder_server::process::{platform, version};
use larder_server::server::{ClientGuards, Guards, Server};
use larder_server::tls::{Security, Tls};
use larder_server::{auth, driver, node};
use larder_session::Settings;
use larder_store::cache::Cache;
use larder_store::journal::{JournaledCache, Journals};
use larder_store::{LimitRefused, erased, segment};
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::net::{TcpListener, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;

/// Exit statuses, as memcached uses them (`sysexits.h`).
const EX_USAGE: u8 = 64;
const EX_NOUSER: u8 = 67;
const EX_OSERR: u8 = 71;

const LICENCE: &str = "larderd is licensed under the MIT licence or the Apache License, Version 2.0,\n\
                       as you like: https://opensource.org/license/mit,\n\
                       https://www.apache.org/licenses/LICENSE-2.0";

/// A connection with more unsent answers than this has to wait for its peer, in bytes.
const OUTPUT_MAX: usize = 256 << 10;

/// More threads than this cause a warning, as in memcached.
const THREADS_USUAL: usize = 64;

/// File descriptors beside those of connections.
const FILES_SPARE: u64 = 64;

fn main() -> ExitCode {
    let options = match Options::read(std::env::args_os()) {
        Ok(options) => options,
        Err(OptionsError::Clap(error)) => return say_usage(&error),
        Err(OptionsError::Misuse(misuse)) => return fail(misuse.status, misuse.message),
    };
    if options.license {
        return say(LICENCE);
    }
    if options.check_config {
        return match listener::check(&options) {
            Ok(()) => say("The options are good."),
            Err(error) => fail(EX_OSERR, error),
        };
    }
    let verbosity = Verbosity::start_log(options.verbosity());
    match start(options, verbosity) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { status, message }) => fail(status, message),
    }
}

/// Why the server did not start, or ended.
struct Failure {
    status: u8,
    message: String,
}

fn failure(status: u8) -> impl Fn(&dyn Display) -> Failure {
    move |message| Failure { status, message: message.to_string() }
}

#[expect(clippy::print_stderr, clippy::print_stdout, reason = "this is what a command line says")]
fn say_usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayVersion => {
            println!("larder {} (memcached {})", version::LARDER, version::MEMCACHED_LEVEL);
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{error}");
            ExitCode::from(1)
        }
    }
}

#[expect(clippy::print_stdout, reason = "it was asked for")]
fn say(text: &str) -> ExitCode {
    println!("{text}");
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "the log may not show it")]
fn fail(status: u8, message: impl Display) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(status)
}

fn start(options: Options, verbosity: Verbosity) -> Result<(), Failure> {
    let classes = slab_classes::size_classes(!options.disable_cas);
    let (limit_bytes, cas) = (items_bytes(&options), !options.disable_cas);
    let seed = rand::random();
    match options.engine {
        kind @ (EngineKind::Segment | EngineKind::Delayed) => {
            let config = segment::Config {
                limit_bytes,
                cas,
                classes,
                seed,
                evict: !options.disable_evictions,
                item_size_max: options.max_item_size,
                threads: options.writers(),
                size_exponent: options.size_exponent(),
                flash: flash::open(&options).map_err(|error| failure(EX_OSERR)(&error))?,
            };
            // Locked memory must not exceed the limit that was given.
            let machine = platform::memory().filter(|_| !options.lock_memory);
            let max = Memory::items_max(options.memory_limit, machine) - options.journal_bytes();
            let (file, image) = (&options.memory_file, &options.suboptions.memory_image);
            let (cache, start) = if file.is_none() && image.is_none() {
                let cache = segment::Cache::growable(config, max);
                (cache.map_err(|error| failure(EX_USAGE)(&error))?, Start::cold())
            } else {
                let files = Files {
                    memory: file.as_deref(),
                    image: image.as_deref(),
                    user: options.user.as_deref(),
                };
                memory_file::open(files, config, max)
                    .map_err(|error| failure(error.status())(&error))?
            };
            let options = with_limit_of(options, &cache);
            if options.enable_largepages
                && let Err(error) = cache.use_huge_pages()
            {
                tracing::warn!("-L has no effect: the system gives no huge pages: {error}");
            }
            let served = match kind {
                #[cfg(feature = "delayed")]
                EngineKind::Delayed => {
                    let storage = larder_store::delayed::Storage::with_thread(seed)
                        .map_err(|error| failure(EX_OSERR)(&error))?;
                    let delayed = larder_store::delayed::Cache::new(cache.clone(), storage);
                    Served { region: Some(cache), ..Served::other(&delayed, &options) }
                }
                _ => Served::segment(&cache, &options),
            };
            serve(options, served, verbosity, start)
        }
        #[cfg(feature = "dashmap")]
        EngineKind::Dashmap => {
            use larder_store::dashmap;
            let config = dashmap::Config { limit_bytes, cas, classes, seed };
            let served = Served::other(&dashmap::Cache::new(config), &options);
            serve(options, served, verbosity, Start::cold())
        }
        #[cfg(feature = "moka")]
        EngineKind::Moka => {
            use larder_server::options::EvictionPolicy;
            use larder_store::moka;
            let policy = match options.eviction_policy {
                Some(EvictionPolicy::Lru) | None => moka::Policy::Lru,
                Some(EvictionPolicy::TinyLfu) => moka::Policy::TinyLfu,
            };
            let config = moka::Config { limit_bytes, cas, classes, seed, policy };
            let served = Served::other(&moka::Cache::new(config), &options);
            serve(options, served, verbosity, Start::cold())
        }
        #[cfg(not(all(feature = "dashmap", feature = "moka")))]
        EngineKind::Dashmap | EngineKind::Moka => {
            unreachable!("Options::check refuses engines that are not in the build")
        }
    }
}

/// The memory for items under the limit that was given.
fn items_bytes(options: &Options) -> usize {
    Memory::new(options.memory_limit).items - options.journal_bytes()
}

/// The options with the memory limit that a region allows which was made under another one.
fn with_limit_of(mut options: Options, cache: &segment::Cache) -> Options {
    let max = usize::try_from(cache.gauges().limit_bytes).unwrap_or(usize::MAX);
    if max < items_bytes(&options) {
        let max = max + options.journal_bytes();
        let mib = *Memory::range(LimitRefused { min: 1, max }).end();
        tracing::warn!(
            "-m {}: the file of -e, or its file system, has room for {mib} MiB, which is the limit now: \
             remove the file to start with an empty cache under the other limit",
            options.memory_limit
        );
        options.memory_limit = mib;
    }
    options
}

/// Runs the workers until the server stops.
type RunWorkers = Box<dyn FnOnce(&Arc<Server>, Sockets) -> io::Result<()>>;

fn run_workers(cache: &impl Cache) -> RunWorkers {
    let cache = cache.clone();
    Box::new(move |server, sockets| driver::run(server, &cache, sockets))
}

/// A cache, behind the types that the parts of the server use.
struct Served {
    /// For every part but the workers.
    cache: erased::Cache,
    /// The same cache with its journals, if the server has followers.
    replicated: Option<ReplicatedCache>,
    run_workers: RunWorkers,
    /// The cache that may be in a file.
    region: Option<segment::Cache>,
}

impl Served {
    /// A cache of the default engine. The workers are compiled for it, with journals and without: they do more than
    /// nine tenths of a server's work.
    fn segment(cache: &segment::Cache, options: &Options) -> Self {
        let region = Some(cache.clone());
        match journals(options) {
            None => Self { region, run_workers: run_workers(cache), ..Self::plain(cache) },
            Some(journals) => {
                let journaled = JournaledCache::new(cache.clone(), journals);
                let run_workers = run_workers(&journaled);
                Self { region, run_workers, ..Self::replicated(&journaled) }
            }
        }
    }

    /// A cache of another engine.
    #[cfg(any(feature = "dashmap", feature = "delayed", feature = "moka"))]
    fn other(cache: &impl Cache, options: &Options) -> Self {
        match journals(options) {
            None => Self::plain(cache),
            Some(journals) => Self::replicated(&JournaledCache::new(cache.clone(), journals)),
        }
    }

    fn plain(cache: &impl Cache) -> Self {
        Self {
            cache: erased::Cache::new(cache.clone()),
            replicated: None,
            run_workers: Box::new(driver::run_any),
            region: None,
        }
    }

    fn replicated<C: Cache>(cache: &JournaledCache<C>) -> Self {
        let served = Self::plain(cache);
        let replicated = ReplicatedCache {
            journaled: served.cache.clone(),
            plain: erased::Cache::new(cache.inner().clone()),
            journals: Arc::clone(cache.journals()),
        };
        Self { replicated: Some(replicated), ..served }
    }
}

/// The journals of a server that has followers.
fn journals(options: &Options) -> Option<Arc<Journals>> {
    options.replicate_on.as_ref()?;
    Some(Journals::new(options.journal_bytes(), options.writers()))
}

fn serve(
    options: Options,
    Served { cache, replicated, run_workers, region }: Served,
    verbosity: Verbosity,
    start: Start,
) -> Result<(), Failure> {
    let os = |error: &dyn Display| failure(EX_OSERR)(error);
    let database = std::env::var_os("MEMCACHED_SASL_PWDB");
    let passwords = auth::open(&options, database).map_err(|error| failure(1)(&error))?;
    let tokens = options.token_file.as_deref().map(TokenFile::open).transpose();
    let tokens = tokens.map_err(|error| failure(1)(&error))?;
    let spare = FILES_SPARE + if options.has_web() { options.gateway_conns as u64 } else { 0 };
    platform::raise_file_limit(options.conn_limit as u64, spare).map_err(|max| {
        failure(EX_OSERR)(&format!(
            "failed to set rlimit for open files. Try starting as root or requesting smaller \
             maxconns value. (-c {} is more than the {max} open files that are allowed)",
            options.conn_limit
        ))
    })?;
    // Once clients can connect, signals can arrive too: SIGHUP would end a process without a handler.
    let (life, wakeups) = LifeCycle::new().map_err(|error| os(&error))?;
    life.install_signal_handlers().map_err(|error| os(&error))?;
    let credentials = read_credentials(&options)?;
    let etcd = node::read_etcd_settings(&options).map_err(|error| failure(EX_USAGE)(&error))?;
    let Bound { listeners, udp, gateway, followers } = bind(&options)?;
    // Its files may be readable for root alone.
    let tls = start_tls(&options, &listeners, &gateway)?;
    detach(&options)?;
    drop_privileges(&options)?;
    let _pid_file = options.pidfile.as_deref().map(PidFile::write);
    if options.enable_sasl && options.auth_file.is_some() {
        tracing::warn!(
            "-S has no effect beside -Y: clients log in by text alone, as with memcached"
        );
    }
    if options.threads > THREADS_USUAL {
        tracing::warn!(
            "-t {} is more than most machines have cores: threads beyond those gain nothing",
            options.threads
        );
    }
    for (name, why) in options.without_effect() {
        tracing::info!("{name} has no effect: {why}");
    }
    let settings = Settings {
        limits: Limits {
            item_size_max: options.max_item_size,
            classes: slab_classes::size_classes(!options.disable_cas),
            prefix_delimiter: options.prefix_delimiter.unwrap_or(b':'),
        },
        flush_enabled: !options.disable_flush_all,
        read_only: options.follow.is_some(),
        forwards: options.cluster.is_some(),
        requests_per_turn: options.max_reqs_per_event,
        output_max: OUTPUT_MAX,
        for_gateway: false,
        resp_databases: options.suboptions.resp_db + 1,
    };
    let clients = ClientGuards { passwords, tokens, tls };
    let guards = Guards { clients, nodes: credentials };
    let server = Server::new(options, settings, guards, cache.clone(), life, verbosity, start);
    let server = Arc::new(server);
    server.note_listeners(&listeners, &udp);
    let listening = listeners.iter().find_map(Listener::tcp_address);
    for address in server.listening() {
        tracing::info!("listening on {address}");
    }
    for address in gateway.metrics.iter().filter_map(GatewaySocket::address) {
        tracing::info!("metrics are at http://{address}/metrics");
    }
    for socket in &gateway.http {
        let scheme = if socket.security == Security::Plain { "http" } else { "https" };
        let too = if gateway.grpc_shares_http { ", and gRPC is there, too" } else { "" };
        if let Some(address) = socket.address() {
            tracing::info!("items are at {scheme}://{address}/v1/keys{too}");
        }
    }
    for address in gateway.grpc.iter().filter_map(GatewaySocket::address) {
        tracing::info!("gRPC is at {address}");
    }
    for address in followers.iter().filter_map(|socket| socket.local_addr().ok()) {
        tracing::info!("followers get copies at {address}");
    }
    greet(&server);
    if !server.asks_for_logins() && is_open_to_others(&server, &listeners, &udp, &gateway) {
        tracing::warn!(
            "anybody who can connect to this machine may read and change all items: give \
             -l 127.0.0.1 to serve this machine alone, or -Y or -S to ask for logins"
        );
    }
    let image = server.options.suboptions.memory_image.as_deref();
    if let Some(image) = image {
        memory_file::remove_image(image).map_err(|error| os(&error))?;
    }
    if let Some(region) = region.as_ref().filter(|_| server.start.restart.is_some()) {
        memory_file::settle(region);
    }
    #[cfg(feature = "metrics")]
    let gateway = Gateway::start(&server, &cache, gateway).map_err(|error| os(&error))?;
    let node = &server.node;
    let name = server.listening().first().cloned().unwrap_or_else(|| "larderd".to_owned());
    let mut node_threads = NodeThreads::follow(node, name).map_err(|error| os(&error))?;
    let addresses = addresses(server.options.advertise.clone(), &listening, &followers);
    if let Some(replicated) = replicated {
        let host: Arc<dyn SessionHost> = Arc::clone(&server) as _;
        node_threads.accept(node, &host, replicated, followers).map_err(|error| os(&error))?;
    }
    node_threads.join_group(node, &etcd, &addresses).map_err(|error| os(&error))?;
    run_workers(&server, Sockets { listeners, udp, wakeups }).map_err(|error| os(&error))?;
    node_threads.stop();
    #[cfg(feature = "metrics")]
    gateway.stop();
    if let (Some(region), Some(image), Phase::Draining) = (&region, image, server.life.requested())
    {
        memory_file::write_image(image, region, server.clock).map_err(|error| os(&error))?;
    }
    tracing::info!("the server has stopped");
    Ok(())
}

/// Prints what was started, if standard error is a terminal.
#[expect(clippy::print_stderr, reason = "for a person, whatever the log shows")]
fn greet(server: &Server) {
    if io::stderr().is_terminal() {
        let (options, addresses) = (&server.options, server.listening());
        eprintln!(
            "larderd {} listens on {}: {} MiB of memory, {} threads",
            version::LARDER,
            addresses.join(", "),
            options.memory_limit,
            options.threads
        );
    }
}

/// Whether clients on other machines are served without a certificate.
fn is_open_to_others(
    server: &Server,
    listeners: &[Listener],
    udp: &[UdpSocket],
    gateway: &GatewaySockets,
) -> bool {
    let certified =
        |security| server.client_tls().is_some_and(|tls| tls.asks_for_certificates(security));
    let open = listeners.iter().filter(|listener| !certified(listener.security()));
    let of_gateway = gateway.of_items().filter(|socket| !certified(socket.security));
    let datagrams = udp.iter().filter_map(|socket| socket.local_addr().ok());
    let open = open.filter_map(Listener::tcp_address);
    let mut addresses = open.chain(datagrams).chain(of_gateway.filter_map(GatewaySocket::address));
    addresses.any(|address| !address.ip().to_canonical().is_loopback())
}

/// Sockets that listen.
struct Bound {
    listeners: Vec<Listener>,
    udp: Vec<UdpSocket>,
    gateway: GatewaySockets,
    /// For followers.
    followers: Vec<TcpListener>,
}

/// What this node proves itself to others with.
fn read_credentials(options: &Options) -> Result<Credentials, Failure> {
    let node = options.cluster.as_ref().map(|_| options.node_name());
    let tls = options.cluster_tls.as_ref().map(|files| NodeTls::new(files, node)).transpose();
    let tls = tls.map_err(|error| failure(EX_USAGE)(&format!("--cluster-tls: {error}")))?;
    Ok(Credentials { secret: read_secret(options)?, tls: tls.map(Arc::new) })
}

/// The secret of the file of `--cluster-secret`, which may be readable for root alone.
fn read_secret(options: &Options) -> Result<Option<Secret>, Failure> {
    let Some(path) = &options.cluster_secret else { return Ok(None) };
    let name = path.display();
    let file = std::fs::read(path)
        .map_err(|error| failure(EX_USAGE)(&format!("--cluster-secret {name}: {error}")))?;
    let secret = Secret::of(&file).ok_or_else(|| {
        failure(EX_USAGE)(&format!(
            "--cluster-secret {name}: the secret must have at least {SECRET_LEN_MIN} bytes"
        ))
    })?;
    Ok(Some(secret))
}

/// The sockets that were passed, or those that the command line asks for.
fn bind(options: &Options) -> Result<Bound, Failure> {
    let os = |error: &dyn Display| failure(EX_OSERR)(error);
    let inherited = activation::inherited(options).map_err(|error| os(&error))?;
    let listeners = match inherited {
        Some(listeners) => listeners,
        None => listener::bind_all(options).map_err(|error| os(&error))?,
    };
    let udp = udp::bind_all(options).map_err(|error| os(&error))?;
    if listeners.is_empty() && udp.is_empty() {
        return Err(failure(EX_USAGE)(&"nothing to listen on: give -p, -U, -l or -s"));
    }
    let gateway = GatewaySockets::bind(options).map_err(|error| os(&error))?;
    let followers = listener::bind_replication(options).map_err(|error| os(&error))?;
    listener::write_port_file(&listeners, &udp, &gateway, &followers)
        .map_err(|error| os(&error))?;
    Ok(Bound { listeners, udp, gateway, followers })
}

/// Reads certificates, under `-Z`.
fn start_tls(
    options: &Options,
    listeners: &[Listener],
    gateway: &GatewaySockets,
) -> Result<Option<Arc<Tls>>, Failure> {
    if options.enable_ssl {
        let of_gateway = gateway.of_items().map(|socket| socket.security);
        let securities = listeners.iter().map(Listener::security).chain(of_gateway);
        let tls = Tls::new(options.suboptions.tls.clone(), securities);
        return tls.map(|tls| Some(Arc::new(tls))).map_err(|error| failure(EX_USAGE)(&error));
    }
    let secure = |listener: &Listener| {
        matches!(listener.security(), Security::Anonymous | Security::Certified)
    };
    if listeners.iter().any(secure) {
        return Err(failure(EX_USAGE)(&"mtls: and btls: need -Z"));
    }
    Ok(None)
}

/// Sets up the process as a whole: the background, core files, memory. All errors that the operator
/// has to see were reported before.
fn detach(options: &Options) -> Result<(), Failure> {
    if options.enable_coredumps {
        platform::allow_core_files()
            .map_err(|_| failure(EX_OSERR)(&"failed to ensure corefile creation"))?;
    }
    if options.daemon {
        let (stay, talk) = (options.enable_coredumps, options.verbose > 0);
        platform::daemonize(stay, talk)
            .map_err(|_| failure(EX_OSERR)(&"failed to daemon() in order to daemonize"))?;
    }
    // This comes after the fork, which does not keep memory locks.
    if options.lock_memory
        && let Err(error) = platform::lock_memory()
    {
        tracing::warn!("warning: -k invalid, mlockall() failed: {error}");
    }
    Ok(())
}

fn drop_privileges(options: &Options) -> Result<(), Failure> {
    match options.user.as_deref() {
        _ if !platform::is_root() => Ok(()),
        None => {
            tracing::warn!("the server runs as root: give -u USER to have it become that user");
            Ok(())
        }
        Some("root") => Ok(()),
        Some(name) => become_user(name, options.enable_coredumps),
    }
}

fn become_user(name: &str, dumpable: bool) -> Result<(), Failure> {
    platform::become_user(name).map_err(|error| match error {
        platform::UserError::Unknown => {
            failure(EX_NOUSER)(&format!("can't find the user {name} to switch to"))
        }
        platform::UserError::Refused(error) => {
            failure(EX_OSERR)(&format!("failed to assume identity of user {name}: {error}"))
        }
    })?;
    if dumpable {
        platform::stay_dumpable();
    }
    Ok(())
}
