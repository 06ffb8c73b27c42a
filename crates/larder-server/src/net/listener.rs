//! Sockets that are listened on: addresses in memcached's form are parsed and bound.

use crate::net::dialect::{self, Dialect};
use crate::options::Options;
use crate::process::platform;
use crate::tls::Security;
use larder_protocol::Parser;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// A socket that is bound and listens: TCP over IPv4 or IPv6, or a unix socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: SockAddr,
    security: Security,
    service: Service,
}

/// The protocol of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// memcached's protocol.
    Memcached {
        /// The dialect, or login, that a conversation begins with.
        opening: Parser,
    },
    /// RESP, the protocol of Redis.
    Resp {
        /// Whether clients have to log in.
        login_required: bool,
    },
}

/// What `-l` names before an address: `proto[ascii]:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedProtocol {
    /// A dialect of memcached's.
    Memcached(Dialect),
    /// `resp`
    Resp,
}

/// An entry of `-l`: `[notls:|btls:|mtls:][proto[PROTOCOL]:][tag[NAME]:]ADDRESS`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    security: Security,
    protocol: Option<NamedProtocol>,
    /// The address.
    pub(crate) text: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(entry: &'a str) -> Result<Self, ListenError> {
        let (security, mut text) = Security::of(entry);
        let mut protocol = None;
        if let Some((name, rest)) = bracketed(text, "proto") {
            protocol = Some(match name {
                "negotiating" => NamedProtocol::Memcached(Dialect::Negotiating),
                "ascii" => NamedProtocol::Memcached(Dialect::Ascii),
                "binary" => NamedProtocol::Memcached(Dialect::Binary),
                "resp" => NamedProtocol::Resp,
                _ => return Err(ListenError::Protocol(entry.to_owned())),
            });
            text = rest;
        }
        // Proxies distinguish their listeners by tags, which have no effect here.
        if let Some((tag, rest)) = bracketed(text, "tag")
            && (1..=8).contains(&tag.len())
        {
            text = rest;
        }
        Ok(Self { security, protocol, text })
    }

    /// The protocol at the address.
    fn service(&self, options: &Options) -> Result<Service, ListenError> {
        let opening = match self.protocol {
            Some(NamedProtocol::Resp) => {
                let login_required = dialect::requires_login(options);
                return Ok(Service::Resp { login_required });
            }
            None => Some(dialect::opening(options)),
            Some(NamedProtocol::Memcached(dialect)) => dialect::opening_in(dialect, options),
        };
        let opening = opening.ok_or_else(|| ListenError::NoLogin(self.text.to_owned()))?;
        Ok(Service::Memcached { opening })
    }
}

/// The text between the brackets of `NAME[..]:`, and the text after them.
fn bracketed<'t>(text: &'t str, name: &str) -> Option<(&'t str, &'t str)> {
    text.strip_prefix(name)?.strip_prefix('[')?.split_once("]:")
}

/// An address that can't be listened on.
#[derive(Debug)]
pub enum ListenError {
    /// It is not an address.
    Address(String),
    /// `-l` was given and names no address.
    NoAddress,
    /// `proto[..]:` does not name a protocol.
    Protocol(String),
    /// The dialect has no logins, and `-S` or `-Y` requires one.
    NoLogin(String),
    /// A TCP socket could not be bound.
    Tcp(SocketAddr, io::Error),
    /// A UDP socket could not be bound.
    Udp(SocketAddr, io::Error),
    /// A unix socket could not be bound.
    Unix(String, io::Error),
    /// A socket that was passed to the server cannot be used.
    Inherited(String),
    /// An address asks for TLS without `-Z`.
    NeedsTls(String),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("-l names no address to listen on"),
            Self::Address(text) => write!(f, "failed to resolve the address to listen on: {text}"),
            Self::Protocol(entry) => {
                write!(f, "-l {entry}: proto[..] is one of ascii, binary, negotiating and resp")
            }
            Self::NoLogin(address) => write!(
                f,
                "-l ..{address}: -Y has logins in ascii alone, -S in binary alone; leave proto[..] \
                 out, or name that one"
            ),
            Self::Tcp(address, error) => {
                write!(f, "failed to listen on TCP port {}: {error} ({address})", address.port())
            }
            Self::Udp(address, error) => {
                write!(f, "failed to listen on UDP port {}: {error} ({address})", address.port())
            }
            Self::Unix(path, error) => {
                write!(f, "failed to listen on UNIX socket: {path}: {error}")
            }
            Self::Inherited(text) => write!(f, "failed to listen on what was passed: {text}"),
            Self::NeedsTls(address) => write!(f, "{address}: mtls: and btls: need -Z"),
        }
    }
}

impl std::error::Error for ListenError {}

impl Listener {
    /// A listener of a socket that listens already. Its connections inherit what is set here.
    ///
    /// # Errors
    /// The system refuses: it is no socket that can be accepted from.
    pub(crate) fn new(socket: Socket, security: Security, service: Service) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        if address.as_socket().is_none() {
            // A unix socket is never encrypted.
            return Ok(Self { socket, address, security: Security::Plain, service });
        }
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
        Ok(Self { socket, address, security, service })
    }

    /// Its address in memcached's form.
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

    /// The address, if it is TCP.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.address.as_socket()
    }

    /// Whether its connections use TLS.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// The protocol of its connections.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// Accepts the next connection, whose socket never blocks; returns it with its peer's name.
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

/// The entries of `-l`.
pub(crate) fn entries(lists: &[String]) -> impl Iterator<Item = Result<Entry<'_>, ListenError>> {
    let texts = lists.iter().flat_map(|list| list.split(';')).map(str::trim);
    texts.filter(|text| !text.is_empty()).map(Entry::parse)
}

/// Checks the entries of `-l` and the addresses of the gateway, without resolving names or binding anything.
///
/// # Errors
/// [`ListenError`] for the first entry that no server would take.
pub fn check(options: &Options) -> Result<(), ListenError> {
    entries(&options.listen).try_for_each(|entry| entry?.service(options).map(drop))?;
    if let Some(text) = &options.metrics_listen {
        host_and_port(text, METRICS_PORT)?;
    }
    for text in [&options.http_listen, &options.grpc_listen].into_iter().flatten() {
        let (_, address) = security_of(options, text)?;
        if address.parse::<u16>().is_err() {
            host_and_port(address, 0)?;
        }
    }
    Ok(())
}

/// Binds everything that the command line asks for.
///
/// # Errors
/// [`ListenError`] for the first address that cannot be bound. A machine without IPv6 is no error.
pub fn bind_all(options: &Options) -> Result<Vec<Listener>, ListenError> {
    let (backlog, usual) =
        (options.listen_backlog, Service::Memcached { opening: dialect::opening(options) });
    if let Some(path) = &options.unix_socket {
        let listener = bind_unix(path, options.unix_mask, backlog, usual)?;
        if let Some(user) = options.user.as_deref().filter(|_| platform::is_root()) {
            // A user that does not exist causes an error later, when privileges are dropped.
            platform::give_to(user, path)
                .map_err(|error| ListenError::Unix(path.display().to_string(), error))?;
        }
        return Ok(vec![listener]);
    }
    let Some(port) = port(options) else { return Ok(Vec::new()) };
    if options.listen.is_empty() {
        return bind_everywhere(port, backlog, Security::Usual, usual);
    }
    let mut listeners = Vec::new();
    for entry in entries(&options.listen) {
        let entry = entry?;
        let (security, service) = (entry.security, entry.service(options)?);
        if entry.text == "*" {
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

/// The ports of metrics, HTTP and gRPC if none is given. That of metrics is the one that Prometheus' list has for
/// memcached.
const METRICS_PORT: u16 = 9150;
const HTTP_PORT: u16 = 8080;
const GRPC_PORT: u16 = 50051;

/// A socket of the gateway, which never blocks.
#[derive(Debug)]
pub struct GatewaySocket {
    /// The socket.
    pub socket: TcpListener,
    /// Whether its connections use TLS.
    pub security: Security,
}

impl GatewaySocket {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

/// The sockets of the gateway.
#[derive(Debug, Default)]
pub struct GatewaySockets {
    /// Those of `--metrics-listen`, which never use TLS.
    pub metrics: Vec<GatewaySocket>,
    /// Those of `--http-listen`.
    pub http: Vec<GatewaySocket>,
    /// Those of `--grpc-listen`.
    pub grpc: Vec<GatewaySocket>,
    /// Whether gRPC is served by the sockets of HTTP, because it has the same address.
    pub grpc_shares_http: bool,
}

impl GatewaySockets {
    /// Binds the addresses of `--metrics-listen`, `--http-listen` and `--grpc-listen`, as far as they are given:
    /// all that their names stand for.
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
        // Port 0 is another port each time.
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

    /// The sockets at which items are served.
    pub fn of_items(&self) -> impl Iterator<Item = &GatewaySocket> {
        self.http.iter().chain(&self.grpc)
    }
}

/// The port of `--replicate-on` if none is given.
const REPLICATION_PORT: u16 = 11311;

/// Binds the addresses of `--replicate-on`.
///
/// # Errors
/// [`ListenError`] for the first address that cannot be bound.
pub fn bind_replication(options: &Options) -> Result<Vec<TcpListener>, ListenError> {
    let Some(text) = &options.replicate_on else { return Ok(Vec::new()) };
    addresses_of(text, REPLICATION_PORT)?.into_iter().map(bind_unblocking).collect()
}

/// What an address stands for; a bare port is one of the loopback.
fn addresses_of(text: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
    match text.parse() {
        Ok(port) => Ok(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)]),
        Err(_) => resolve(text, port),
    }
}

/// Whether TLS is used at what an option names, and the addresses; a bare port is one of the loopback.
fn of_items(
    options: &Options,
    text: Option<&str>,
    port: u16,
) -> Result<(Security, Vec<SocketAddr>), ListenError> {
    let Some(entry) = text else { return Ok((Security::Plain, Vec::new())) };
    let (security, text) = security_of(options, entry)?;
    Ok((security, addresses_of(text, port)?))
}

/// Whether TLS is used at an address of HTTP or gRPC, and the address without its prefix.
fn security_of<'t>(options: &Options, entry: &'t str) -> Result<(Security, &'t str), ListenError> {
    match Security::of(entry) {
        (security, text) if options.enable_ssl => Ok((security, text)),
        (Security::Usual | Security::Plain, text) => Ok((Security::Plain, text)),
        _ => Err(ListenError::NeedsTls(entry.to_owned())),
    }
}

fn bind_unblocking(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let bind = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|error| ListenError::Tcp(address, error))
}

/// The port to listen on; 0 lets the system choose one.
fn port(options: &Options) -> Option<u16> {
    match options.port {
        0 => None,
        -1 => Some(0),
        port => u16::try_from(port).ok(),
    }
}

/// All IPv4 and IPv6 addresses, on one port.
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

/// `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address.
pub(crate) fn resolve(text: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
    let bad = || ListenError::Address(text.to_owned());
    let at = host_and_port(text, port)?;
    let found: Vec<SocketAddr> = at.to_socket_addrs().map_err(|_| bad())?.collect();
    if found.is_empty() { Err(bad()) } else { Ok(found) }
}

/// The parts of an address.
fn host_and_port(text: &str, port: u16) -> Result<(&str, u16), ListenError> {
    let bare = without_brackets(text);
    if bare.parse::<IpAddr>().is_ok() {
        return Ok((bare, port));
    }
    match text.rsplit_once(':') {
        Some((host, digits)) => match digits.parse() {
            Ok(port) => Ok((without_brackets(host), port)),
            Err(_) => Err(ListenError::Address(text.to_owned())),
        },
        // A number would be taken for an address by the resolver.
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(ListenError::Address(text.to_owned()))
        }
        None => Ok((text, port)),
    }
}

/// The text between brackets, if there are both.
fn without_brackets(text: &str) -> &str {
    text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text)
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
        // A server that was killed leaves its socket behind. A file of any other kind is not removed.
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

/// Writes the ports, in memcached's form, to the file that `MEMCACHED_PORT_FILENAME` names, for test
/// harnesses.
///
/// # Errors
/// The file can't be written.
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
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, &path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    const ANY: Service = Service::Memcached { opening: Parser::TEXT };

    #[test]
    fn what_is_accepted_never_blocks_and_sends_at_once() {
        let any = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = bind_tcp(any, 1, Security::Usual, ANY).unwrap();
        let error = listener.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "nobody has connected yet");
        let client = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(peer, tcp_name(client.local_addr().unwrap()));
        assert!(stream.nonblocking().unwrap() && stream.tcp_nodelay().unwrap());
        assert!(stream.keepalive().unwrap());
    }

    #[test]
    fn a_unix_socket_has_the_name_of_its_path_and_no_tls() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let listener = bind_unix(&path, 0o700, 1, ANY).unwrap();
        assert_eq!(listener.name(), format!("unix:{}", path.display()));
        assert_eq!((listener.tcp_address(), listener.security()), (None, Security::Plain));
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!((stream.nonblocking().unwrap(), &*peer), (true, "unix:"));
    }

    #[test]
    fn what_stands_before_an_address_is_told_from_it() {
        use Dialect::{Ascii, Binary, Negotiating};
        let lists = [
            "notls:[::1]:7;mtls:tag[a]:host; proto[ascii]:tag[tools]:*".to_owned(),
            "proto[negotiating]:*".to_owned(),
            // Empty entries are skipped, as by memcached.
            ";btls:proto[binary]:host:1; ;".to_owned(),
        ];
        let expected = [
            (Security::Plain, None, "[::1]:7"),
            (Security::Certified, None, "host"),
            (Security::Usual, Some(Ascii), "*"),
            (Security::Usual, Some(Negotiating), "*"),
            (Security::Anonymous, Some(Binary), "host:1"),
        ];
        let expected = expected.map(|(security, dialect, text)| Entry {
            security,
            protocol: dialect.map(NamedProtocol::Memcached),
            text,
        });
        let found: Vec<Entry<'_>> = entries(&lists).map(Result::unwrap).collect();
        assert_eq!(found, expected);
        for entry in ["tag[too-long-a-tag]:host", "tag[]:host", "proto[]", "tls:host", "[::1"] {
            let entry = Entry::parse(entry).unwrap();
            assert!(resolve(entry.text, 1).is_err(), "{entry:?}");
        }
        for entry in ["proto[]:host", "proto[text]:host", "notls:proto[proxy]:host"] {
            let refused = Entry::parse(entry).unwrap_err().to_string();
            assert!(refused.contains("ascii, binary"), "{refused}");
        }
    }

    #[test]
    fn resp_has_the_login_of_the_other_protocols() {
        for (line, login_required) in
            [("", false), ("-B binary", false), ("-Y file", true), ("-S", true)]
        {
            let words = std::iter::once("larderd").chain(line.split_whitespace());
            let options = <Options as clap::Parser>::try_parse_from(words).unwrap();
            let service = Entry::parse("proto[resp]:*").unwrap().service(&options).ok();
            assert_eq!(service, Some(Service::Resp { login_required }), "{line}");
        }
    }

    #[test]
    fn a_dialect_of_l_counts_more_than_that_of_b_unless_it_has_no_logins() {
        let (text, binary) = (Some(Parser::TEXT), Some(Parser::BINARY));
        let (any, text_login) = (Some(Parser::default()), Some(Parser::TEXT_LOGIN));
        let binary_login = Some(Parser::BINARY_LOGIN);
        let cases = [
            ("", [any, any, text, binary]),
            ("-B ascii", [text, any, text, binary]),
            ("-B binary", [binary, any, text, binary]),
            ("-Y file", [text_login, text_login, text_login, None]),
            ("-S", [binary_login, binary_login, None, binary_login]),
            ("-S -Y file", [text_login, text_login, text_login, None]),
        ];
        for (line, openings) in cases {
            let words = std::iter::once("larderd").chain(line.split_whitespace());
            let options = <Options as clap::Parser>::try_parse_from(words).unwrap();
            let entries = ["*", "proto[negotiating]:*", "proto[ascii]:*", "proto[binary]:*"];
            for (entry, opening) in entries.into_iter().zip(openings) {
                let service = Entry::parse(entry).unwrap().service(&options).ok();
                let expected = opening.map(|opening| Service::Memcached { opening });
                assert_eq!(service, expected, "{line} -l {entry}");
            }
        }
    }
}
