//! TLS over a nonblocking socket.
//!
//! ```text
//!   handshake() ── Some(readiness): wait for it, then call again
//!       │ None
//!       ▼
//!   write(), read(), is_quiet() ── an error except `WouldBlock`: the connection is unusable
//! ```
//! A session behaves like a socket. [`Session::write`] counts bytes as sent only when the socket
//! has accepted their complete TLS record. The server cannot decrypt part of a record, so it never
//! sees bytes that are not counted as sent.

use crate::waiter::Readiness;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// The maximum plaintext length of a TLS record, in bytes (RFC 8446, 5.1).
const RECORD_LEN_MAX: usize = 16 << 10;

/// The number of receives without plaintext after which a read returns `WouldBlock`. Without this
/// limit, a server that sends only TLS messages could keep a read busy past its deadline.
const RECEIVED_MAX: usize = 64;

/// Creates the TLS sessions with one server.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// The TLS session of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    tls: ClientConnection,
    received: RecordTracker,
    /// The number of plaintext bytes in the partly sent record. 0 if no record is partly sent.
    buffered_len: usize,
}

/// Tracks the record boundaries in the received bytes.
#[derive(Debug, Default)]
struct RecordTracker {
    /// The last five received header bytes. A complete header has the type, the version and the
    /// length of its record.
    header: [u8; 5],
    /// The number of received bytes in the current header.
    header_len: usize,
    /// The number of missing bytes in the current record's body.
    missing: usize,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Connector {
    /// Creates a connector. The server's certificate must contain `name`.
    ///
    /// # Errors
    /// The name is neither a DNS name nor an IP address.
    pub(crate) fn new(config: Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        let invalid = |_| {
            let error = format!("{name:?} is not a valid certificate name");
            io::Error::new(ErrorKind::InvalidInput, error)
        };
        let name = ServerName::try_from(name.to_owned()).map_err(invalid)?;
        Ok(Self { config, name })
    }

    /// Creates the session of a new connection.
    ///
    /// # Errors
    /// rustls rejects the configuration.
    pub(crate) fn session(&self) -> io::Result<Session> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let tls = tls.map_err(describe)?;
        Ok(Session { tls, received: RecordTracker::default(), buffered_len: 0 })
    }
}

impl Session {
    /// Continues the handshake until the socket would block. Returns the readiness to wait for, or
    /// `None` when the handshake is complete.
    ///
    /// # Errors
    /// The handshake failed.
    pub(crate) fn handshake(
        &mut self,
        socket: &mut (impl Read + Write),
    ) -> io::Result<Option<Readiness>> {
        loop {
            if !self.flush(socket)? {
                return Ok(Some(Readiness::Write));
            }
            if !self.tls.is_handshaking() {
                return Ok(None);
            }
            match self.receive(socket) {
                Ok(true) => (),
                Ok(false) => {
                    let error = "connection closed by the server during the TLS handshake";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, error));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Some(Readiness::Read));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Like [`Read::read`] on the socket. Also returns `Ok(0)` if the server closes the connection
    /// without `close_notify`. A truncated reply is still detected, because the protocol marks the
    /// end of each reply.
    ///
    /// # Errors
    /// `WouldBlock`: the socket has no more data, or [`RECEIVED_MAX`] receives in a row contained
    /// no plaintext. Other errors: the connection failed.
    pub(crate) fn read(
        &mut self,
        socket: &mut (impl Read + Write),
        into: &mut [u8],
    ) -> io::Result<usize> {
        for _ in 0..RECEIVED_MAX {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if !self.receive(socket)? {
                return Ok(0);
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Like [`Write::write`] on the socket. After `WouldBlock`, the next call must pass the same
    /// bytes again, because their record may be partly sent.
    ///
    /// # Errors
    /// `WouldBlock`: the record is not completely sent. Other errors: the connection failed.
    pub(crate) fn write(
        &mut self,
        socket: &mut (impl Read + Write),
        bytes: &[u8],
    ) -> io::Result<usize> {
        if self.buffered_len == 0 {
            // Writes at most one record, because the server can decrypt only complete records.
            let record = bytes.get(..RECORD_LEN_MAX).unwrap_or(bytes);
            self.buffered_len = self.tls.writer().write(record)?;
        }
        if self.flush(socket)? {
            Ok(std::mem::take(&mut self.buffered_len))
        } else {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    /// Returns whether the connection is open and the server has sent no plaintext and no partial
    /// record. The check processes TLS's own messages, such as session tickets, and does not count
    /// complete messages as unread input. If there is plaintext, the check consumes a byte of it,
    /// so the session is unusable after the result `false`.
    ///
    /// # Errors
    /// The session has failed.
    pub(crate) fn is_quiet(&mut self, socket: &mut (impl Read + Write)) -> io::Result<bool> {
        match self.read(socket, &mut [0]) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(self.received.are_whole()),
            Err(error) => Err(error),
        }
    }

    /// Returns whether plaintext is available without a read from the socket.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_input(&mut self) -> bool {
        self.tls.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    /// Sends `close_notify`, unless a record is partly sent. Sending `close_notify` would complete
    /// a partly sent record, and the server would carry out a request that the client reports as
    /// unsent.
    pub(crate) fn close(&mut self, socket: &mut (impl Read + Write)) {
        if self.buffered_len == 0 {
            self.tls.send_close_notify();
            // Ignores errors, because the server may already have closed the connection.
            drop(self.flush(socket));
        }
    }

    /// Receives and decrypts available data. Returns false if the server has closed the connection.
    fn receive(&mut self, socket: &mut (impl Read + Write)) -> io::Result<bool> {
        let mut reader = RecordReader { socket, records: &mut self.received };
        match self.tls.read_tls(&mut reader) {
            Ok(0) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            received => received?,
        };
        let processed = self.tls.process_new_packets().map_err(describe);
        // Sends TLS's own messages, such as alerts, unless a record is partly sent. Sending these
        // messages would complete a partly sent record, and the server would carry out a request
        // that the client reports as unsent.
        let flushed = if self.buffered_len == 0 { self.flush(socket) } else { Ok(false) };
        processed?;
        flushed?;
        Ok(true)
    }

    /// Sends as many bytes as the socket accepts. Returns whether all bytes are sent.
    fn flush(&mut self, socket: &mut (impl Read + Write)) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl RecordTracker {
    fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.missing > 0 {
                let len = self.missing.min(bytes.len());
                self.missing -= len;
                bytes = bytes.get(len..).unwrap_or_default();
                continue;
            }
            self.header.rotate_left(1);
            let [_, _, _, _, last] = &mut self.header;
            *last = *first;
            self.header_len += 1;
            if self.header_len == self.header.len() {
                let [_, _, _, high, low] = self.header;
                self.missing = u16::from_be_bytes([high, low]).into();
                self.header_len = 0;
            }
            bytes = rest;
        }
    }

    /// Returns whether the received bytes end with a complete record.
    fn are_whole(&self) -> bool {
        self.header_len == 0 && self.missing == 0
    }
}

/// A socket that passes its received bytes to a [`RecordTracker`].
struct RecordReader<'s, S> {
    socket: &'s mut S,
    records: &'s mut RecordTracker,
}

impl<S: Read> Read for RecordReader<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.socket.read(into)?;
        self.records.pass(into.get(..len).unwrap_or_default());
        Ok(len)
    }
}

/// Converts a TLS error to an I/O error with a message for operators.
fn describe(error: rustls::Error) -> io::Error {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForNameContext, UnknownIssuer,
    };
    let text = match &error {
        rustls::Error::InvalidMessage(_) => "the server does not speak TLS".to_owned(),
        rustls::Error::AlertReceived(alert) => format!("TLS alert from the server: {alert:?}"),
        rustls::Error::InvalidCertificate(reason) => match reason {
            UnknownIssuer | BadSignature => {
                "the server's certificate is not signed by a trusted CA".to_owned()
            }
            Expired | ExpiredContext { .. } => "the server's certificate has expired".to_owned(),
            NotValidForNameContext { expected, presented } => {
                let (expected, names) = (expected.to_str(), presented.join(", "));
                format!("the server's certificate is not for {expected}, but for {names}")
            }
            reason => format!("invalid server certificate: {reason}"),
        },
        other => format!("TLS: {other}"),
    };
    io::Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{RootCertStore, ServerConfig, ServerConnection};

    /// A server whose receive buffer has space for `room` more bytes.
    struct Peer {
        tls: ServerConnection,
        room: usize,
    }

    impl Read for Peer {
        fn read(&mut self, mut into: &mut [u8]) -> io::Result<usize> {
            let is_idle = !self.tls.wants_write();
            if is_idle { Err(ErrorKind::WouldBlock.into()) } else { self.tls.write_tls(&mut into) }
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut accepted = &bytes[..bytes.len().min(self.room)];
            if accepted.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let len = self.tls.read_tls(&mut accepted)?;
            self.room -= len;
            self.tls.process_new_packets().unwrap();
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Peer {
        /// Returns the number of received plaintext bytes.
        fn received(&mut self) -> usize {
            let mut bytes = Vec::new();
            // Ignores the error at the end of the data, because the connection is still open.
            drop(self.tls.reader().read_to_end(&mut bytes));
            bytes.len()
        }
    }

    fn connected() -> (Session, Peer) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["cache.test".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            );
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = ServerConnection::new(Arc::new(server.unwrap())).unwrap();
        let mut peer = Peer { tls, room: usize::MAX };
        let connector = Connector::new(Arc::new(client), "cache.test").unwrap();
        let mut session = connector.session().unwrap();
        assert_eq!(session.handshake(&mut peer).unwrap(), None);
        assert!(is_quiet(&mut session, &mut peer), "session tickets are no plaintext");
        (session, peer)
    }

    fn is_quiet(session: &mut Session, socket: &mut (impl Read + Write)) -> bool {
        session.is_quiet(socket).unwrap_or(false)
    }

    #[test]
    fn a_record_is_reported_only_when_completely_sent() {
        for room in [0, 1, 1000, 1999] {
            let (mut session, mut peer) = connected();
            peer.room = room;
            let request = [b'x'; 2000];
            for _ in 0..2 {
                let sent = session.write(&mut peer, &request).unwrap_err();
                assert_eq!((sent.kind(), peer.received()), (ErrorKind::WouldBlock, 0));
            }
            peer.room = usize::MAX;
            assert_eq!(session.write(&mut peer, &request).unwrap(), 2000);
            assert_eq!(peer.received(), 2000, "and only once");
        }
    }

    #[test]
    fn only_write_completes_a_partly_sent_record() {
        let (mut session, mut peer) = connected();
        peer.room = 1000;
        session.write(&mut peer, &[b'x'; 2000]).unwrap_err();
        peer.room = usize::MAX;
        // The server sends a key update, which the client has to answer.
        peer.tls.refresh_traffic_keys().unwrap();
        assert!(is_quiet(&mut session, &mut peer));
        session.close(&mut peer);
        assert_eq!((peer.received(), session.buffered_len), (0, 2000));
        // Without a partly sent record, close sends `close_notify`.
        let (mut session, mut peer) = connected();
        session.close(&mut peer);
        assert_eq!(peer.tls.reader().read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_partly_received_record_is_not_quiet() {
        for len in [1, 4, 5, 6, 20] {
            let (mut session, mut peer) = connected();
            let mut record = Vec::new();
            peer.tls.writer().write_all(b"END").unwrap();
            peer.tls.write_tls(&mut record).unwrap();
            let mut part = io::Cursor::new(&record[..len]);
            let mut reader = RecordReader { socket: &mut part, records: &mut session.received };
            session.tls.read_tls(&mut reader).unwrap();
            assert!(!is_quiet(&mut session, &mut peer), "{len} bytes of {}", record.len());
        }
    }

    proptest! {
        #[test]
        fn record_boundaries_are_found_in_any_split(
            bodies in prop::collection::vec(0..600_usize, 1..5),
            step in 1..700_usize,
        ) {
            let (mut stream, mut ends) = (Vec::new(), vec![0]);
            for len in bodies {
                stream.extend([23, 3, 3]);
                stream.extend(u16::try_from(len).unwrap().to_be_bytes());
                stream.resize(stream.len() + len, 0xff);
                ends.push(stream.len());
            }
            let (mut records, mut passed) = (RecordTracker::default(), 0);
            for piece in stream.chunks(step) {
                records.pass(piece);
                passed += piece.len();
                prop_assert_eq!(records.are_whole(), ends.contains(&passed));
            }
        }
    }
}
