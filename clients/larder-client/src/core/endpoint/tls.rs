//! TLS over a socket that never blocks.
//!
//! ```text
//!   handshake() ── Some(readiness): wait for that, and ask again
//!       │ None
//!       ▼
//!   write(), read(), is_quiet() ── an error: the connection is of no use any more
//! ```
//! To its caller a session is like a socket: what [`Session::write`] has taken is with the system, so a request of which
//! nothing was taken did not reach the server.

use crate::waiter::Readiness;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// How many bytes a record has at most (RFC 8446, 5.1).
const RECORD_LEN_MAX: usize = 16 << 10;

/// After so many parts of records without anything for the caller, a read is to be asked for again: a server that sends
/// nothing else must not keep it from its deadline.
const RECEIVED_MAX: usize = 64;

/// What begins sessions with one server.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// One connection's TLS.
#[derive(Debug)]
pub(crate) struct Session {
    tls: ClientConnection,
    received: Records,
    /// How many bytes of the caller's are in a record that was not sent to its end.
    taken: usize,
}

/// Where records end, among the bytes of a connection.
#[derive(Debug, Default)]
struct Records {
    /// What has come of a record's header: its type, version and length.
    header: [u8; 5],
    header_len: usize,
    /// How many bytes its body still has.
    missing: usize,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Connector {
    /// # Errors
    /// The name is neither one of DNS nor a number.
    pub(crate) fn new(config: Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        let invalid = |_| {
            let error = format!("{name:?} is no name that a certificate can be for");
            io::Error::new(ErrorKind::InvalidInput, error)
        };
        let name = ServerName::try_from(name.to_owned()).map_err(invalid)?;
        Ok(Self { config, name })
    }

    /// # Errors
    /// The configuration allows no session.
    pub(crate) fn session(&self) -> io::Result<Session> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let tls = tls.map_err(readable)?;
        Ok(Session { tls, received: Records::default(), taken: 0 })
    }
}

impl Session {
    /// Goes on with the handshake as far as is possible now. `None`: it is complete. Otherwise, what the socket has to
    /// be ready for.
    ///
    /// # Errors
    /// It can't be completed.
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
                    let error = "the server closed the connection during the TLS handshake";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, error));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Some(Readiness::Read));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// As [`Read::read`] of the socket. The end of the connection need not be announced, as replies say how long they
    /// are.
    ///
    /// # Errors
    /// `WouldBlock`: the socket has no more, or has had nothing for the caller for long; or the connection failed.
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

    /// As [`Write::write`] of the socket, except that after `WouldBlock` the same bytes have to be the first ones of the
    /// next call: they are in a record of which a part may have been sent.
    ///
    /// # Errors
    /// `WouldBlock`; or the connection failed.
    pub(crate) fn write(
        &mut self,
        socket: &mut (impl Read + Write),
        bytes: &[u8],
    ) -> io::Result<usize> {
        if self.taken == 0 {
            // One record: the server can read none of it before it has come to its end.
            let record = bytes.get(..RECORD_LEN_MAX).unwrap_or(bytes);
            self.taken = self.tls.writer().write(record)?;
        }
        if self.flush(socket)? {
            Ok(std::mem::take(&mut self.taken))
        } else {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    /// Whether the server has neither closed the connection nor sent anything to be read, not even a part of it. What
    /// TLS itself has to say, such as a session ticket, is taken.
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

    /// Whether there is something to be read without the socket.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_input(&mut self) -> bool {
        self.tls.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    /// Announces the end, unless a part of a request is still to be sent: that has to stay a part.
    pub(crate) fn close(&mut self, socket: &mut (impl Read + Write)) {
        if self.taken == 0 {
            self.tls.send_close_notify();
            // Whoever is gone need not be told.
            drop(self.flush(socket));
        }
    }

    /// Receives what there is; `false` at the end.
    fn receive(&mut self, socket: &mut (impl Read + Write)) -> io::Result<bool> {
        let mut counted = Counted { socket, records: &mut self.received };
        match self.tls.read_tls(&mut counted) {
            Ok(0) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            received => received?,
        };
        let processed = self.tls.process_new_packets().map_err(readable);
        // An answer of TLS's own, or an alert. It must not complete a request that the caller believes incomplete.
        let flushed = if self.taken == 0 { self.flush(socket) } else { Ok(false) };
        processed?;
        flushed?;
        Ok(true)
    }

    /// Sends what there is room for; whether that is all.
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

impl Records {
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

    /// Whether no record has come in part.
    fn are_whole(&self) -> bool {
        self.header_len == 0 && self.missing == 0
    }
}

/// A socket whose records are followed.
struct Counted<'s, S> {
    socket: &'s mut S,
    records: &'s mut Records,
}

impl<S: Read> Read for Counted<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.socket.read(into)?;
        self.records.pass(into.get(..len).unwrap_or_default());
        Ok(len)
    }
}

/// What went wrong, for somebody who has to set it right.
fn readable(error: rustls::Error) -> io::Error {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForNameContext, UnknownIssuer,
    };
    let text = match &error {
        rustls::Error::InvalidMessage(_) => "what the server sent is not TLS".to_owned(),
        rustls::Error::AlertReceived(alert) => format!("the server ended TLS: {alert:?}"),
        rustls::Error::InvalidCertificate(reason) => match reason {
            UnknownIssuer | BadSignature => {
                "no CA that is trusted has signed the server's certificate".to_owned()
            }
            Expired | ExpiredContext { .. } => "the server's certificate has expired".to_owned(),
            NotValidForNameContext { expected, presented } => {
                let (expected, names) = (expected.to_str(), presented.join(", "));
                format!("the server's certificate is not for {expected}, but for {names}")
            }
            reason => format!("the server's certificate can't be trusted: {reason}"),
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

    /// A server, to which there is room for so many bytes.
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
            let mut taken = &bytes[..bytes.len().min(self.room)];
            if taken.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let len = self.tls.read_tls(&mut taken)?;
            self.room -= len;
            self.tls.process_new_packets().unwrap();
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Peer {
        /// What it has received, besides TLS.
        fn received(&mut self) -> usize {
            let mut bytes = Vec::new();
            // It is not at its end.
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
        assert!(is_quiet(&mut session, &mut peer), "tickets say nothing");
        (session, peer)
    }

    fn is_quiet(session: &mut Session, socket: &mut (impl Read + Write)) -> bool {
        session.is_quiet(socket).unwrap_or(false)
    }

    #[test]
    fn a_record_is_sent_when_all_of_it_is() {
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
    fn nothing_but_its_caller_completes_a_record() {
        let (mut session, mut peer) = connected();
        peer.room = 1000;
        session.write(&mut peer, &[b'x'; 2000]).unwrap_err();
        peer.room = usize::MAX;
        // The client has to answer this.
        peer.tls.refresh_traffic_keys().unwrap();
        assert!(is_quiet(&mut session, &mut peer));
        session.close(&mut peer);
        assert_eq!((peer.received(), session.taken), (0, 2000));
        // Otherwise, the end is announced.
        let (mut session, mut peer) = connected();
        session.close(&mut peer);
        assert_eq!(peer.tls.reader().read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_a_server_says_is_not_quiet_even_in_part() {
        for len in [1, 4, 5, 6, 20] {
            let (mut session, mut peer) = connected();
            let mut record = Vec::new();
            peer.tls.writer().write_all(b"END").unwrap();
            peer.tls.write_tls(&mut record).unwrap();
            let mut part = io::Cursor::new(&record[..len]);
            let mut counted = Counted { socket: &mut part, records: &mut session.received };
            session.tls.read_tls(&mut counted).unwrap();
            assert!(!is_quiet(&mut session, &mut peer), "{len} bytes of {}", record.len());
        }
    }

    proptest! {
        #[test]
        fn the_end_of_a_record_is_found_however_it_comes(
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
            let (mut records, mut passed) = (Records::default(), 0);
            for piece in stream.chunks(step) {
                records.pass(piece);
                passed += piece.len();
                prop_assert_eq!(records.are_whole(), ends.contains(&passed));
            }
        }
    }
}
