//! Starts the parts of the server, and runs them until the server stops.

use super::cache_parts::CacheParts;
use super::credentials::read_credentials;
use super::failure::{EX_OSERR, EX_UNAVAILABLE, EX_USAGE, Failure, failure};
use super::privileges::{detach, drop_privileges};

use super::sockets::{BoundSockets, bind, is_open_to_others, start_tls};
use larder_cluster::{JoinError, NodeThreads, SessionHost, addresses};
use larder_operations::Limits;
use larder_server::auth::{self, TokenFile};
use larder_server::driver::Sockets;
#[cfg(feature = "metrics")]
use larder_server::gateway::Gateway;
use larder_server::log::verbosity::Verbosity;
use larder_server::memory::memory_file::{self, StartState};
use larder_server::memory::slab_classes;
use larder_server::net::gateway_sockets::{GatewaySocket, GatewaySockets};
use larder_server::net::listener::Listener;
use larder_server::node;
use larder_server::options::Options;
use larder_server::process::life_cycle::{LifeCycle, Phase};
use larder_server::process::pid_file::PidFile;
use larder_server::process::{platform, version};
use larder_server::server::{AccessControl, ClientAccessControl, Server};
use larder_server::tls::Security;
use larder_session::Settings;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

/// A connection with more than this number of unsent reply bytes answers no requests until its peer
/// reads.
const OUTPUT_MAX: usize = 256 << 10;

/// The number of threads above which the server logs a warning, as memcached does.
const THREADS_USUAL: usize = 64;

/// The number of file descriptors that larderd reserves for uses other than connections.
const FILES_SPARE: u64 = 64;

pub(crate) fn serve(
    options: Options,
    CacheParts { cache, replicated, run_workers, region }: CacheParts,
    verbosity: Verbosity,
    start: StartState,
) -> Result<(), Failure> {
    let os = |error: &dyn Display| failure(EX_OSERR)(error);
    let database = std::env::var_os("MEMCACHED_SASL_PWDB");
    let passwords = auth::open(&options, database).map_err(|error| failure(1)(&error))?;
    let tokens = options.token_file.as_deref().map(TokenFile::open).transpose();
    let tokens = tokens.map_err(|error| failure(1)(&error))?;
    raise_file_limit(&options)?;
    // Install the handlers before clients can connect: without a handler, SIGHUP terminates the
    // process.
    let (life, wakeups) = LifeCycle::new().map_err(|error| os(&error))?;
    life.install_signal_handlers().map_err(|error| os(&error))?;
    let credentials = read_credentials(&options)?;
    let etcd = node::read_etcd_settings(&options).map_err(|error| failure(EX_USAGE)(&error))?;
    let BoundSockets { listeners, udp, gateway, followers } = bind(&options)?;
    // Read the certificates before dropping privileges: root may be the only user that can read
    // them.
    let tls = start_tls(&options, &listeners, &gateway)?;
    detach(&options)?;
    drop_privileges(&options)?;
    let _pid_file = options.pidfile.as_deref().map(PidFile::write);
    log_options(&options);
    let settings = session_settings(&options);
    let clients = ClientAccessControl { passwords, tokens, tls };
    let access = AccessControl { clients, nodes: credentials };
    let server = Server::new(options, settings, access, cache.clone(), life, verbosity, start);
    let server = Arc::new(server);
    server.note_listeners(&listeners, &udp);
    let listening = listeners.iter().find_map(Listener::tcp_address);
    log_addresses(&server, &gateway, &followers);
    log_access(&server, &listeners, &udp, &gateway);
    let image = server.options.suboptions.memory_image.as_deref();
    if let Some(image) = image {
        memory_file::remove_image(image).map_err(|error| os(&error))?;
    }
    if let Some(region) = region.as_ref().filter(|_| server.start.restart.is_some()) {
        memory_file::spawn_restart_thread(region);
    }
    #[cfg(feature = "metrics")]
    let gateway = Gateway::start(&server, &cache, gateway).map_err(|error| os(&error))?;
    let node = &server.node;
    let name = server.listening().first().cloned().unwrap_or_else(|| "larderd".to_owned());
    let mut node_threads = NodeThreads::follow(node, name).map_err(|error| os(&error))?;
    let addresses = addresses(server.options.advertise.clone(), &listening, &followers);
    let host: Arc<dyn SessionHost> = Arc::clone(&server) as _;
    if let Some(replicated) = replicated {
        node_threads.accept(node, &host, replicated, followers).map_err(|error| os(&error))?;
    }
    let continues = || server.life.requested() == Phase::Serving;
    node_threads.join_group(node, &host, &etcd, &addresses, &continues).map_err(left_group)?;
    run_workers(&server, Sockets { listeners, udp, wakeups }).map_err(|error| os(&error))?;
    let left = node_threads.stop();
    #[cfg(feature = "metrics")]
    gateway.stop();
    if let (Some(region), Some(image), Phase::Draining) = (&region, image, server.life.requested())
    {
        memory_file::write_image(image, region, &server.clock).map_err(|error| os(&error))?;
    }
    tracing::info!("server stopped");
    left.map_err(left_group)
}

/// Converts the error of a server that could not join or stay in its group.
fn left_group(error: JoinError) -> Failure {
    let status = match error {
        JoinError::Thread(_) => EX_OSERR,
        JoinError::Membership(_) => EX_UNAVAILABLE,
    };
    failure(status)(&error)
}

/// Raises the limit on open files to the number that `-c` connections and the gateway's connections
/// need.
fn raise_file_limit(options: &Options) -> Result<(), Failure> {
    let spare = FILES_SPARE + if options.has_web() { options.gateway_conns as u64 } else { 0 };
    platform::raise_file_limit(options.conn_limit as u64, spare).map_err(|max| {
        failure(EX_OSERR)(&format!(
            "failed to set rlimit for open files. Try starting as root or requesting smaller \
             maxconns value. (-c {} exceeds the limit of {max} open files)",
            options.conn_limit
        ))
    })
}

/// Logs options that have no effect or an unexpected effect.
fn log_options(options: &Options) {
    if options.enable_sasl && options.auth_file.is_some() {
        tracing::warn!(
            "-S: -Y takes precedence, as in memcached, and clients log in only by text; omit one of them"
        );
    }
    if options.threads > THREADS_USUAL {
        tracing::warn!(
            "-t {}: more threads than cores do not raise throughput; set -t to the number of cores",
            options.threads
        );
    }
    for (name, why) in options.without_effect() {
        tracing::info!("{name} has no effect: {why}");
    }
}

fn session_settings(options: &Options) -> Settings {
    Settings {
        limits: Limits {
            item_size_max: options.max_item_size,
            classes: slab_classes::size_classes(!options.disable_cas),
            prefix_delimiter: options.prefix_delimiter.unwrap_or(b':'),
        },
        flush_enabled: !options.disable_flush_all,
        read_only: options.follow.is_some(),
        forwards: options.cluster.is_some(),
        requests_per_poll: options.max_reqs_per_event,
        output_max: OUTPUT_MAX,
        for_gateway: false,
        resp_databases: options.suboptions.resp_db + 1,
    }
}

/// Logs the addresses that the server listens on, and prints the startup line.
fn log_addresses(server: &Server, gateway: &GatewaySockets, followers: &[TcpListener]) {
    for address in server.listening() {
        tracing::info!("listening on {address}");
    }
    for address in gateway.metrics.iter().filter_map(GatewaySocket::address) {
        tracing::info!("serving metrics at http://{address}/metrics");
    }
    for socket in &gateway.http {
        let scheme = if socket.security == Security::Plain { "http" } else { "https" };
        let grpc = if gateway.grpc_shares_http { ", and gRPC at the same address" } else { "" };
        if let Some(address) = socket.address() {
            tracing::info!("serving items at {scheme}://{address}/v1/keys{grpc}");
        }
    }
    for address in gateway.grpc.iter().filter_map(GatewaySocket::address) {
        tracing::info!("serving gRPC at {address}");
    }
    for address in followers.iter().filter_map(|socket| socket.local_addr().ok()) {
        tracing::info!("listening for followers at {address}");
    }
    print_startup_line(server);
}

/// Logs a warning if every client that can connect to this machine may use the cache.
fn log_access(
    server: &Server,
    listeners: &[Listener],
    udp: &[UdpSocket],
    gateway: &GatewaySockets,
) {
    if !server.requires_login() && is_open_to_others(server, listeners, udp, gateway) {
        tracing::warn!(
            "access: every client that reaches this machine can read and change all items, because no login is \
             required; give -l 127.0.0.1 to serve only this machine, or -Y or -S to require logins"
        );
    }
}

/// If standard error is a terminal, prints the addresses, the memory limit and the number of
/// threads.
#[expect(clippy::print_stderr, reason = "independent of the verbosity of the log")]
fn print_startup_line(server: &Server) {
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
