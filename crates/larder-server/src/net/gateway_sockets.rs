//! The sockets of metrics, HTTP, gRPC and replication, and the port file.

use crate::net::entry::{addresses_of, host_and_port, resolve, security_of};
use crate::net::listen_error::ListenError;
use crate::net::listener::Listener;
use crate::options::Options;
use crate::tls::Security;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

/// The default metrics port. Prometheus's port list assigns it to the memcached exporter.
const METRICS_PORT: u16 = 9150;
/// The default port of HTTP.
const HTTP_PORT: u16 = 8080;
/// The default port of gRPC.
const GRPC_PORT: u16 = 50051;

/// A non-blocking listening socket of the gateway.
#[derive(Debug)]
pub struct GatewaySocket {
    /// The bound socket.
    pub socket: TcpListener,
    /// The TLS requirements of its connections.
    pub security: Security,
}

impl GatewaySocket {
    /// Returns the bound address.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

/// The sockets of the gateway.
#[derive(Debug, Default)]
pub struct GatewaySockets {
    /// The sockets of `--metrics-listen`, which never use TLS.
    pub metrics: Vec<GatewaySocket>,
    /// The sockets of `--http-listen`.
    pub http: Vec<GatewaySocket>,
    /// The sockets of `--grpc-listen`; empty if the HTTP sockets also serve gRPC.
    pub grpc: Vec<GatewaySocket>,
    /// Whether the HTTP sockets also serve gRPC, because both options give the same address.
    pub grpc_shares_http: bool,
}

impl GatewaySockets {
    /// Binds every address that `--metrics-listen`, `--http-listen` and `--grpc-listen` resolve to.
    ///
    /// # Errors
    /// [`ListenError`] for the first address that cannot be bound.
    pub fn bind(options: &Options) -> Result<Self, ListenError> {
        let metrics = match &options.metrics_listen {
            Some(text) => resolve(text, METRICS_PORT)?,
            None => Vec::new(),
        };
        let (of_http, http) = of_items(options, options.http_listen.as_deref(), HTTP_PORT)?;
        let (of_grpc, mut grpc) = of_items(options, options.grpc_listen.as_deref(), GRPC_PORT)?;
        // With port 0, each bind gets a different port, so equal addresses do not share a socket.
        let grpc_shares_http = !grpc.is_empty()
            && (of_grpc, &grpc) == (of_http, &http)
            && grpc.iter().all(|address| address.port() != 0);
        if grpc_shares_http {
            grpc.clear();
        }
        let bind = |security, addresses: Vec<SocketAddr>| {
            let bind =
                |address| bind_unblocking(address).map(|socket| GatewaySocket { socket, security });
            addresses.into_iter().map(bind).collect::<Result<Vec<GatewaySocket>, ListenError>>()
        };
        let (metrics, http) = (bind(Security::Plain, metrics)?, bind(of_http, http)?);
        Ok(Self { metrics, http, grpc: bind(of_grpc, grpc)?, grpc_shares_http })
    }

    /// Returns the sockets that serve items: HTTP and gRPC.
    pub fn of_items(&self) -> impl Iterator<Item = &GatewaySocket> {
        self.http.iter().chain(&self.grpc)
    }
}

/// The default port of `--replicate-on`.
const REPLICATION_PORT: u16 = 11311;

/// Binds the addresses of `--replicate-on`.
///
/// # Errors
/// [`ListenError`] for the first address that cannot be bound.
pub fn bind_replication(options: &Options) -> Result<Vec<TcpListener>, ListenError> {
    let Some(text) = &options.replicate_on else { return Ok(Vec::new()) };
    addresses_of(text, REPLICATION_PORT)?.into_iter().map(bind_unblocking).collect()
}

/// Checks the gateway's and replication's addresses, without resolving names or binding sockets.
///
/// # Errors
/// [`ListenError`] for the first invalid address.
pub fn check(options: &Options) -> Result<(), ListenError> {
    if let Some(text) = &options.metrics_listen {
        host_and_port(text, METRICS_PORT)?;
    }
    for text in [&options.http_listen, &options.grpc_listen].into_iter().flatten() {
        let (_, address) = security_of(options, text)?;
        check_address(address)?;
    }
    options.replicate_on.as_deref().map_or(Ok(()), check_address)
}

/// Checks an address, which may consist of only a port.
fn check_address(text: &str) -> Result<(), ListenError> {
    if text.parse::<u16>().is_err() {
        host_and_port(text, 0)?;
    }
    Ok(())
}

/// Resolves an option for HTTP or gRPC to its TLS requirements and addresses. If the address is
/// only a port, it is on the loopback.
fn of_items(
    options: &Options,
    text: Option<&str>,
    port: u16,
) -> Result<(Security, Vec<SocketAddr>), ListenError> {
    let Some(entry) = text else { return Ok((Security::Plain, Vec::new())) };
    let (security, text) = security_of(options, entry)?;
    Ok((security, addresses_of(text, port)?))
}

fn bind_unblocking(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let bind = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|error| ListenError::Tcp(address, error))
}

/// Writes the ports of all sockets, in memcached's format, to the file that the environment variable
/// `MEMCACHED_PORT_FILENAME` names, for test harnesses. Does nothing if the variable is not set, or
/// if no socket has a port.
///
/// # Errors
/// Writing the file failed. The message names the variable and the file.
pub fn write_port_file(
    listeners: &[Listener],
    udp: &[UdpSocket],
    gateway: &GatewaySockets,
    replication: &[TcpListener],
) -> io::Result<()> {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else { return Ok(()) };
    let mut text = String::new();
    let tcp = listeners.iter().filter_map(Listener::tcp_address).map(|address| ("TCP", address));
    let udp = udp.iter().filter_map(|socket| Some(("UDP", socket.local_addr().ok()?)));
    let GatewaySockets { metrics, http, grpc, .. } = gateway;
    let gateway = [("METRICS", metrics), ("HTTP", http), ("GRPC", grpc)];
    let gateway = gateway.iter().flat_map(|(name, sockets)| {
        sockets.iter().filter_map(move |socket| Some((*name, socket.address()?)))
    });
    let followers = replication.iter().filter_map(|socket| socket.local_addr().ok());
    let followers = followers.map(|address| ("REPLICATION", address));
    for (transport, address) in tcp.chain(udp).chain(gateway).chain(followers) {
        let family = if address.is_ipv4() { "INET" } else { "INET6" };
        text.push_str(&format!("{transport} {family}: {}\n", address.port()));
    }
    if text.is_empty() {
        return Ok(());
    }
    let mut temporary = path.clone();
    temporary.push(".lck");
    let written =
        std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path));
    written.map_err(|error| {
        let path = Path::new(&path).display();
        let message = format!("MEMCACHED_PORT_FILENAME={path}: cannot write the ports: {error}");
        io::Error::new(error.kind(), message)
    })
}
