//! Listening sockets for TCP and unix clients, and their names in memcached's format.

use crate::net::dialect;
use crate::net::entry::{Service, checked_port, entries, resolve, wildcard_port};
use crate::net::listen_error::ListenError;
use crate::options::Options;
use crate::process::platform;
use crate::tls::Security;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// A listening socket: TCP over IPv4 or IPv6, or a unix socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: SockAddr,
    security: Security,
    service: Service,
}

impl Listener {
    /// Wraps a socket that already listens, and makes it non-blocking. On a TCP socket, also sets
    /// `TCP_NODELAY` and `SO_KEEPALIVE`, which its connections inherit.
    ///
    /// # Errors
    /// Setting an option failed, for example because the socket is not a stream socket.
    pub(crate) fn new(socket: Socket, security: Security, service: Service) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        if address.as_socket().is_none() {
            // Unix sockets never use TLS.
            return Ok(Self { socket, address, security: Security::Plain, service });
        }
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
        Ok(Self { socket, address, security, service })
    }

    /// Returns the address in memcached's format.
    #[must_use]
    pub fn name(&self) -> String {
        match self.tcp_address() {
            Some(address) => tcp_name(address),
            None => {
                let path = self.address.as_pathname().unwrap_or(Path::new(""));
                format!("unix:{}", path.display())
            }
        }
    }

    /// Returns the address of a TCP socket, or `None` for a unix socket.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.address.as_socket()
    }

    /// Returns the TLS requirements of accepted connections.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// Returns the protocol of accepted connections.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// Accepts the next connection. Returns its non-blocking socket, and the peer's address in
    /// memcached's format.
    ///
    /// # Errors
    /// `WouldBlock` if no connection is pending, or an error of the system.
    pub fn accept(&self) -> io::Result<(Socket, String)> {
        let (stream, peer) = self.socket.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream, peer.as_socket().map_or_else(|| "unix:".to_owned(), tcp_name)))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn tcp_name(address: SocketAddr) -> String {
    named("tcp", address)
}

pub(crate) fn udp_name(address: SocketAddr) -> String {
    named("udp", address)
}

fn named(transport: &str, address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => format!("{transport}:{ip}:{}", address.port()),
        IpAddr::V6(ip) => format!("{transport}6:[{ip}]:{}", address.port()),
    }
}

/// Binds the unix socket given by `-s`. Without `-s`, binds the TCP sockets given by `-p` and `-l`.
///
/// # Errors
/// [`ListenError`] for the first address that is invalid or cannot be bound, or if `-l` contains no
/// address. For `*` and `*:PORT`, missing IPv6 support is not an error.
pub fn bind_all(options: &Options) -> Result<Vec<Listener>, ListenError> {
    let (backlog, usual) =
        (options.listen_backlog, Service::Memcached { opening: dialect::opening(options) });
    if let Some(path) = &options.unix_socket {
        let listener = bind_unix(path, options.unix_mask, backlog, usual)?;
        if let Some(user) = options.user.as_deref().filter(|_| platform::is_root()) {
            // An unknown user is not an error here, because it causes an error later, when the
            // process drops its privileges.
            platform::give_to(user, path)
                .map_err(|error| ListenError::Unix(path.display().to_string(), error))?;
        }
        return Ok(vec![listener]);
    }
    let Some(port) = port(options) else { return bind_resp(options) };
    if options.listen.is_empty() {
        return bind_everywhere(port, backlog, Security::Usual, usual);
    }
    let mut listeners = Vec::new();
    for entry in entries(&options.listen) {
        let entry = entry?;
        let (security, service) = (entry.security, entry.service(options)?);
        if let Some(port) = wildcard_port(entry.text, port) {
            listeners.extend(bind_everywhere(port, backlog, security, service)?);
            continue;
        }
        for address in resolve(entry.text, port)? {
            listeners.push(bind_tcp(address, backlog, security, service)?);
        }
    }
    if listeners.is_empty() {
        return Err(ListenError::NoAddress);
    }
    Ok(listeners)
}

/// Checks the addresses that [`bind_all`] binds, without resolving names or binding anything.
/// Returns the TLS requirements of each address.
///
/// # Errors
/// [`ListenError`] for the first invalid address, or if `-l` contains no address.
pub fn check(options: &Options) -> Result<Vec<Security>, ListenError> {
    if options.unix_socket.is_some() {
        return Ok(vec![Security::Plain]);
    }
    let port = port(options);
    if port.is_some() && options.listen.is_empty() {
        return Ok(vec![Security::Usual]);
    }
    let mut securities = Vec::new();
    for entry in entries(&options.listen) {
        let entry = entry?;
        let service = entry.service(options)?;
        let is_bound = match (port, service) {
            (Some(port), _) => checked_port(entry.text, port).map(|_| true)?,
            // With `-p 0`, only RESP addresses with an explicit port are bound, as in `bind_resp`.
            (None, Service::Resp { .. }) => checked_port(entry.text, 0)? != 0,
            (None, Service::Memcached { .. }) => false,
        };
        securities.extend(is_bound.then_some(entry.security));
    }
    if port.is_some() && securities.is_empty() {
        return Err(ListenError::NoAddress);
    }
    Ok(securities)
}

/// Binds only the RESP addresses with an explicit port, for `-p 0`, which disables memcached's
/// protocols over TCP, but not RESP.
fn bind_resp(options: &Options) -> Result<Vec<Listener>, ListenError> {
    let mut listeners = Vec::new();
    for entry in entries(&options.listen) {
        let entry = entry?;
        let service = entry.service(options)?;
        if !matches!(service, Service::Resp { .. }) {
            continue;
        }
        if let Some(port) = wildcard_port(entry.text, 0) {
            if port != 0 {
                let (backlog, security) = (options.listen_backlog, entry.security);
                listeners.extend(bind_everywhere(port, backlog, security, service)?);
            }
            continue;
        }
        for address in resolve(entry.text, 0)?.into_iter().filter(|address| address.port() != 0) {
            listeners.push(bind_tcp(address, options.listen_backlog, entry.security, service)?);
        }
    }
    Ok(listeners)
}

/// Returns the TCP port of the options: `None` for no TCP, 0 for any free port.
fn port(options: &Options) -> Option<u16> {
    match options.port {
        0 => None,
        -1 => Some(0),
        port => u16::try_from(port).ok(),
    }
}

/// Binds the unspecified IPv4 and IPv6 addresses on the same port. If binding IPv6 fails, omits
/// IPv6, unless the reason is that the port is in use.
fn bind_everywhere(
    port: u16,
    backlog: i32,
    security: Security,
    service: Service,
) -> Result<Vec<Listener>, ListenError> {
    let v4 =
        bind_tcp(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), backlog, security, service)?;
    let port = v4.tcp_address().map_or(port, |address| address.port());
    let v6 =
        bind_tcp(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), backlog, security, service);
    match v6 {
        Ok(v6) => Ok(vec![v4, v6]),
        Err(ListenError::Tcp(_, error)) if error.kind() != io::ErrorKind::AddrInUse => Ok(vec![v4]),
        Err(error) => Err(error),
    }
}

fn bind_tcp(
    address: SocketAddr,
    backlog: i32,
    security: Security,
    service: Service,
) -> Result<Listener, ListenError> {
    let bind = || -> io::Result<Listener> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        Listener::new(socket, security, service)
    };
    bind().map_err(|error| ListenError::Tcp(address, error))
}

fn bind_unix(
    path: &Path,
    mask: u32,
    backlog: i32,
    service: Service,
) -> Result<Listener, ListenError> {
    let bind = || -> io::Result<Listener> {
        // Remove a socket file that a killed server has left behind. Keep a file of another kind,
        // so that bind fails.
        if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mask))?;
        socket.listen(backlog)?;
        Listener::new(socket, Security::Plain, service)
    };
    bind().map_err(|error| ListenError::Unix(path.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_protocol::Parser;
    use std::net::TcpStream;

    const ANY: Service = Service::Memcached { opening: Parser::TEXT };

    #[test]
    fn accepted_sockets_are_non_blocking_and_without_delay() {
        let any = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = bind_tcp(any, 1, Security::Usual, ANY).unwrap();
        let error = listener.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "no client has connected yet");
        let client = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(peer, tcp_name(client.local_addr().unwrap()));
        assert!(stream.nonblocking().unwrap() && stream.tcp_nodelay().unwrap());
        assert!(stream.keepalive().unwrap());
    }

    #[test]
    fn a_unix_socket_is_named_by_its_path_and_has_no_tls() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let listener = bind_unix(&path, 0o700, 1, ANY).unwrap();
        assert_eq!(listener.name(), format!("unix:{}", path.display()));
        assert_eq!((listener.tcp_address(), listener.security()), (None, Security::Plain));
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!((stream.nonblocking().unwrap(), &*peer), (true, "unix:"));
    }
}
