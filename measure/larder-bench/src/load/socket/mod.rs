//! Non-blocking client sockets: TCP and unix sockets, with and without TLS.

pub(crate) mod opening;

use crate::run_error::RunError;
use crate::settings::Tls;
use larder_target::ServerAddress;
use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `EINPROGRESS`: a non-blocking connect continues in the background.
const EINPROGRESS: i32 = 115;

/// Maximum time that [`Socket::begin_connect`] waits while the backlog of a server's unix socket is
/// full.
const UNIX_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A non-blocking socket, with or without TLS.
#[derive(Debug)]
pub(crate) struct Socket {
    transport: socket2::Socket,
    tls: Option<Box<ClientConnection>>,
}

/// The TLS configuration of all connections to one server.
#[derive(Clone, Debug)]
pub(crate) struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Socket {
    /// Connects, and blocks for up to `timeout` until the socket is connected. `None` applies the
    /// system's limit. The TLS handshake follows with the first reads and writes.
    pub(crate) fn connect(
        address: &ServerAddress,
        tls: Option<&TlsClient>,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        let transport: socket2::Socket = match (address, timeout) {
            (ServerAddress::Tcp(address), None) => TcpStream::connect(address)?.into(),
            (ServerAddress::Tcp(address), Some(timeout)) => {
                TcpStream::connect_timeout(address, timeout)?.into()
            }
            (ServerAddress::Unix(path), None) => UnixStream::connect(path)?.into(),
            (ServerAddress::Unix(path), Some(timeout)) => connect_unix(path, timeout)?,
        };
        if matches!(address, ServerAddress::Tcp(_)) {
            transport.set_tcp_nodelay(true)?;
        }
        Self::of(transport, tls)
    }

    fn of(transport: socket2::Socket, tls: Option<&TlsClient>) -> io::Result<Self> {
        transport.set_nonblocking(true)?;
        let tls = match tls {
            Some(tls) => {
                let connection = ClientConnection::new(tls.config.clone(), tls.name.clone());
                Some(Box::new(connection.map_err(io::Error::other)?))
            }
            None => None,
        };
        Ok(Self { transport, tls })
    }

    /// Returns a socket for [`begin_connect`](Self::begin_connect).
    pub(crate) fn unconnected(
        address: &ServerAddress,
        tls: Option<&TlsClient>,
    ) -> io::Result<Self> {
        let domain = match address {
            ServerAddress::Tcp(address) => socket2::Domain::for_address(*address),
            ServerAddress::Unix(_) => socket2::Domain::UNIX,
        };
        let transport = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        if matches!(address, ServerAddress::Tcp(_)) {
            transport.set_tcp_nodelay(true)?;
        }
        Self::of(transport, tls)
    }

    /// Starts to connect. Over TCP, this does not block, and [`is_connected`](Self::is_connected)
    /// returns the result. A unix socket is connected on return: while the server's backlog is
    /// full, the call blocks for up to [`UNIX_CONNECT_TIMEOUT`].
    pub(crate) fn begin_connect(&mut self, address: &ServerAddress) -> io::Result<()> {
        match address {
            ServerAddress::Tcp(address) => match self.transport.connect(&(*address).into()) {
                Err(error) if error.raw_os_error() == Some(EINPROGRESS) => Ok(()),
                result => result,
            },
            ServerAddress::Unix(path) => {
                // Connects in blocking mode, because a non-blocking connect fails if the server's
                // backlog is full.
                self.transport.set_nonblocking(false)?;
                self.transport.set_write_timeout(Some(UNIX_CONNECT_TIMEOUT))?;
                self.transport.connect(&socket2::SockAddr::unix(path)?)?;
                self.transport.set_nonblocking(true)
            }
        }
    }

    /// Returns whether the socket is connected.
    ///
    /// # Errors
    /// Connecting failed.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.transport.take_error()? {
            return Err(error);
        }
        match self.transport.peer_addr() {
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            result => result.map(|_| true),
        }
    }

    /// With a timeout, makes each read and write block for up to that time. Without a timeout,
    /// makes the socket non-blocking.
    pub(crate) fn set_blocking(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.transport.set_nonblocking(timeout.is_none())?;
        self.transport.set_read_timeout(timeout)?;
        self.transport.set_write_timeout(timeout)
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        SourceFd(&self.transport.as_raw_fd()).register(registry, token, interest)
    }

    /// Reads like [`Read::read`]: `Ok(0)` is the end of the stream.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self { transport, tls: Some(tls) } = self else { return self.transport.read(into) };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                other => return other,
            }
            if tls.read_tls(transport)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(tls_error)?;
            flush(tls, transport)?;
        }
    }

    /// Writes like [`Write::write`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { transport, tls: Some(tls) } = self else { return self.transport.write(bytes) };
        // Sends earlier data first, which limits the TLS buffer.
        flush(tls, transport)?;
        if tls.wants_write() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = tls.writer().write(bytes)?;
        flush(tls, transport)?;
        Ok(taken)
    }

    /// Returns whether the socket is empty after a read that did not fill the buffer. Always false
    /// with TLS, because a read returns at most one TLS record.
    pub(crate) fn short_read_is_the_last(&self) -> bool {
        self.tls.is_none()
    }

    /// Returns whether the TLS handshake is not complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Returns whether TLS has no unsent data.
    pub(crate) fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }
}

/// Connects to a unix socket. A non-blocking connect fails at once while the server's backlog is
/// full, so this function retries it for up to `timeout`.
fn connect_unix(path: &Path, timeout: Duration) -> io::Result<socket2::Socket> {
    let start_time = Instant::now();
    let address = socket2::SockAddr::unix(path)?;
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    loop {
        match socket.connect(&address) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            result => return result.map(|()| socket),
        }
        if start_time.elapsed() >= timeout {
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Converts a TLS error. For an invalid record, the message says that the server probably does not
/// use TLS.
fn tls_error(error: rustls::Error) -> io::Error {
    match error {
        rustls::Error::InvalidMessage(_) => io::Error::new(
            ErrorKind::InvalidData,
            "the server does not speak TLS on this port; remove --tls",
        ),
        other => io::Error::other(other),
    }
}

/// Sends pending TLS records until there are none or the socket's buffer is full.
fn flush(tls: &mut ClientConnection, transport: &mut socket2::Socket) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(transport) {
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl TlsClient {
    /// Creates the TLS configuration of connections to a server from its files.
    ///
    /// # Errors
    /// A file cannot be read or is malformed, a file lacks the client's certificate or key, these
    /// two do not match, or the server name is invalid.
    pub(crate) fn new(tls: &Tls, address: &ServerAddress) -> Result<Self, RunError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| RunError::Tls(error.to_string()))?;
        let builder = match &tls.authority {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| RunError::Tls(error.to_string()))?;
                }
                builder.with_root_certificates(roots)
            }
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider))),
        };
        let config = match &tls.client {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| RunError::Tls(format!("{}: {error}", key.display())))?;
                builder.with_client_auth_cert(certificates(certificate)?, key)
            }
            None => Ok(builder.with_no_client_auth()),
        };
        let config = config.map_err(|error| RunError::Tls(error.to_string()))?;
        let name = match (&tls.server_name, address) {
            (Some(name), _) => name.clone(),
            (None, ServerAddress::Tcp(address)) => address.ip().to_string(),
            (None, ServerAddress::Unix(_)) => "localhost".to_owned(),
        };
        let name = ServerName::try_from(name).map_err(|error| RunError::Tls(error.to_string()))?;
        Ok(Self { config: Arc::new(config), name })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, RunError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| RunError::Tls(format!("{}: {error}", path.display())))
}

/// Accepts every server certificate, because test servers rarely have a CA-signed certificate.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
