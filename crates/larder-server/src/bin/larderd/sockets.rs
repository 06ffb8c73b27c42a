//! The listening sockets of larderd, and their TLS.

use super::failure::{EX_OSERR, EX_USAGE, Failure, failure};
use larder_server::net::gateway_sockets::{self, GatewaySocket, GatewaySockets};
use larder_server::net::listen_error::ListenError;
use larder_server::net::listener::{self, Listener};
use larder_server::net::{activation, udp};
use larder_server::options::Options;
use larder_server::server::Server;
use larder_server::tls::{Security, Tls};
use std::fmt::Display;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

/// The bound sockets.
pub(crate) struct BoundSockets {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) udp: Vec<UdpSocket>,
    pub(crate) gateway: GatewaySockets,
    /// The sockets for followers.
    pub(crate) followers: Vec<TcpListener>,
}

/// Runs the checks of [`bind`] and [`start_tls`] that need neither the network nor files. Resolves
/// no names and binds no sockets. Assumes that systemd passes no sockets.
pub(crate) fn check(options: &Options) -> Result<(), Failure> {
    let os = |error: ListenError| failure(EX_OSERR)(&error);
    let securities = listener::check(options).map_err(os)?;
    let has_udp = udp::check(options).map_err(os)?;
    if securities.is_empty() && !has_udp {
        return Err(no_address());
    }
    gateway_sockets::check(options).map_err(os)?;
    if !options.enable_ssl && securities.into_iter().any(requires_tls) {
        return Err(needs_tls());
    }
    Ok(())
}

/// Binds all sockets. If systemd passes sockets, they replace the TCP and unix sockets that the
/// options specify. The passed sockets serve memcached's protocols, so the server then has no RESP
/// listener. The UDP, gateway and replication sockets always come from the options.
pub(crate) fn bind(options: &Options) -> Result<BoundSockets, Failure> {
    let os = |error: &dyn Display| failure(EX_OSERR)(error);
    let inherited = activation::inherited(options).map_err(|error| os(&error))?;
    let listeners = match inherited {
        Some(listeners) => listeners,
        None => listener::bind_all(options).map_err(|error| os(&error))?,
    };
    let udp = udp::bind_all(options).map_err(|error| os(&error))?;
    if listeners.is_empty() && udp.is_empty() {
        return Err(no_address());
    }
    let gateway = GatewaySockets::bind(options).map_err(|error| os(&error))?;
    let followers = gateway_sockets::bind_replication(options).map_err(|error| os(&error))?;
    gateway_sockets::write_port_file(&listeners, &udp, &gateway, &followers)
        .map_err(|error| os(&error))?;
    Ok(BoundSockets { listeners, udp, gateway, followers })
}

/// Reads the certificates for `-Z`. Without `-Z`, returns `None`, or an error if a listener
/// requires TLS. Call this before dropping privileges.
pub(crate) fn start_tls(
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
    if listeners.iter().map(Listener::security).any(requires_tls) {
        return Err(needs_tls());
    }
    Ok(None)
}

fn requires_tls(security: Security) -> bool {
    matches!(security, Security::Anonymous | Security::Certified)
}

fn no_address() -> Failure {
    failure(EX_USAGE)(&"no address to listen on; give -p, -U, -l or -s")
}

fn needs_tls() -> Failure {
    failure(EX_USAGE)(&"mtls: and btls: need -Z")
}

/// Returns whether clients on other machines can connect without a client certificate.
pub(crate) fn is_open_to_others(
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
