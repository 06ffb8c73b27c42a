//! A connection to another node, plain or with TLS.
//!
//! Two threads use it at the same time: one reads, and the other writes. With TLS they share the state of the session,
//! so there are two locks, which are taken in this order:
//!
//! ```text
//! sending   held while records are made and sent: they leave in the order in which they were encrypted
//! session   held while bytes are encrypted or decrypted, never while the socket is waited for
//! ```
//! So a writer does not wait for a peer that is silent, and a reader does not wait for a peer that reads nothing.

use super::handshake::HandshakeLimit;
use super::node_tls::NodeTls;
use crate::error::{LocalError, PeerError, Violation};
use larder_replica::Frame;
use larder_support::tls::explain_certificate;
use rustls::client::verify_server_name;
use rustls::pki_types::{DnsName, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{Connection, Error, InvalidMessage};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Encrypted bytes that are read at once: two records.
const READ_LEN: usize = 32 << 10;

/// A connection. It is read and written through `&PeerStream`; one thread at a time may read.
#[derive(Debug)]
pub(crate) struct PeerStream {
    socket: TcpStream,
    tls: Option<Box<Encryption>>,
}

#[derive(Debug)]
struct Encryption {
    sending: Mutex<Sending>,
    session: Mutex<Session>,
}

/// Records on their way to the socket.
#[derive(Debug, Default)]
struct Sending {
    records: Vec<u8>,
    /// A part of the records may have been sent: nothing that follows could be read.
    is_broken: bool,
}

/// The state of TLS.
#[derive(Debug)]
struct Session {
    connection: Connection,
    /// Decrypted bytes for which a reader had no room, and how many of them it has had since.
    plaintext: Vec<u8>,
    taken: usize,
}

/// The plaintext of records.
#[derive(Debug, PartialEq, Eq)]
enum Decrypted {
    /// So many bytes; 0: the peer has closed the session.
    Bytes(usize),
    /// No record is complete, or none was for the reader.
    Nothing,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerStream {
    /// A connection that was accepted; with TLS once the peer has shown a valid certificate.
    ///
    /// # Errors
    /// The handshake fails, or takes too long.
    pub(crate) fn accept(
        socket: TcpStream,
        tls: Option<&NodeTls>,
        limit: &HandshakeLimit<'_>,
    ) -> Result<Self, PeerError> {
        let connection = tls.map(NodeTls::accept).transpose().map_err(LocalError::Tls)?;
        Self::begin(socket, connection, limit)
    }

    /// A connection that this server has made; with TLS once the peer has shown a valid certificate for the name.
    ///
    /// # Errors
    /// The handshake fails, or takes too long.
    pub(crate) fn connect(
        socket: TcpStream,
        tls: Option<(&NodeTls, ServerName<'static>)>,
        limit: &HandshakeLimit<'_>,
    ) -> Result<Self, PeerError> {
        let connection = tls.map(|(tls, name)| tls.connect(name)).transpose();
        Self::begin(socket, connection.map_err(LocalError::Tls)?, limit)
    }

    fn begin(
        socket: TcpStream,
        connection: Option<Connection>,
        limit: &HandshakeLimit<'_>,
    ) -> Result<Self, PeerError> {
        let Some(connection) = connection else { return Ok(Self { socket, tls: None }) };
        let mut session = Session { connection, plaintext: Vec::new(), taken: 0 };
        session.shake_hands(&socket, limit).map_err(PeerError::in_tls_handshake)?;
        let encryption = Encryption { sending: Mutex::default(), session: Mutex::new(session) };
        Ok(Self { socket, tls: Some(Box::new(encryption)) })
    }

    /// Appends more of a handshake to `input`.
    ///
    /// # Errors
    /// As of [`HandshakeLimit::read`].
    pub(crate) fn receive(
        &self,
        limit: &HandshakeLimit<'_>,
        input: &mut Vec<u8>,
    ) -> Result<(), PeerError> {
        let mut bytes = [0; 4096];
        let len = limit.read(&self.socket, self, &mut bytes)?;
        input.extend_from_slice(bytes.get(..len).unwrap_or_default());
        Ok(())
    }

    pub(crate) fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(time)
    }

    pub(crate) fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.socket.set_write_timeout(time)
    }

    /// Sends a refusal with the words for this error, if it has any, and returns the error.
    pub(crate) fn refuse(&self, error: impl Into<PeerError>) -> PeerError {
        let error = error.into();
        if let Some(words) = error.refusal() {
            let mut out = Vec::new();
            Frame::Refused(words).write(&mut out);
            let mut stream = self;
            // Without the words the peer only sees the connection end.
            let _ = stream.write_all(&out);
        }
        error
    }

    /// Closes the socket for all threads. TLS's announcement of the end is left out: it could have to wait, and a
    /// frame that is cut off is noticed without it.
    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Whether a read returns bytes without the socket. Callers check this before they poll.
    pub(crate) fn has_buffered(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| lock(&tls.session).has_buffered())
    }

    /// Whether the peer may call itself the node of this name: its certificate has it. Without TLS, anybody may.
    pub(crate) fn is_certified_as(&self, node: &str) -> bool {
        self.tls.as_ref().is_none_or(|tls| lock(&tls.session).is_certified_as(node))
    }
}

impl AsFd for PeerStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for &PeerStream {
    /// As of a socket. With TLS, it may end with `Interrupted` when only a part of a record has come.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => (&self.socket).read(bytes),
            Some(tls) => tls.read(&self.socket, bytes),
        }
    }
}

impl Write for &PeerStream {
    /// As of a socket. With TLS, nothing more can be written after an error.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.tls {
            None => (&self.socket).write(bytes),
            Some(tls) => tls.write(&self.socket, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Encryption {
    fn read(&self, mut socket: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
        let buffered = lock(&self.session).take(bytes);
        if buffered > 0 || bytes.is_empty() {
            return Ok(buffered);
        }
        let mut records = [0; READ_LEN];
        let len = socket.read(&mut records)?;
        if len == 0 {
            return Ok(0);
        }
        let decrypted = lock(&self.session).decrypt(records.get(..len).unwrap_or_default(), bytes);
        match decrypted {
            Ok(Decrypted::Bytes(len)) => Ok(len),
            Ok(Decrypted::Nothing) => Err(io::ErrorKind::Interrupted.into()),
            Err(error) => {
                self.send_alert(socket);
                Err(error)
            }
        }
    }

    fn write(&self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let mut sending = lock(&self.sending);
        if sending.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let len = lock(&self.session).encrypt(bytes, &mut sending.records)?;
        sending.send(socket)?;
        Ok(len)
    }

    /// Sends the peer the reason why the connection ends, unless another thread is sending.
    fn send_alert(&self, socket: &TcpStream) {
        let mut sending = match self.sending.try_lock() {
            Ok(sending) => sending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !sending.is_broken {
            // Without the alert the peer only sees the socket close.
            let _ = lock(&self.session).take_records(&mut sending.records);
            let _ = sending.send(socket);
        }
    }
}

impl Sending {
    fn send(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        self.is_broken = true;
        socket.write_all(&self.records)?;
        self.records.clear();
        self.is_broken = false;
        Ok(())
    }
}

impl Session {
    fn shake_hands(
        &mut self,
        mut socket: &TcpStream,
        limit: &HandshakeLimit<'_>,
    ) -> Result<(), PeerError> {
        let (mut bytes, mut records) = ([0; 4096], Vec::new());
        loop {
            self.take_records(&mut records)?;
            socket.write_all(&records)?;
            records.clear();
            if !self.connection.is_handshaking() {
                return Ok(());
            }
            let len = limit.read(socket, socket, &mut bytes)?;
            if let Err(error) = self.decrypt(bytes.get(..len).unwrap_or_default(), &mut []) {
                // Without the alert the peer only sees the socket close.
                let _ = self.take_records(&mut records).and_then(|()| socket.write_all(&records));
                return Err(error.into());
            }
        }
    }

    fn has_buffered(&self) -> bool {
        self.taken < self.plaintext.len()
    }

    /// Moves bytes that are decrypted already to `bytes`; how many.
    fn take(&mut self, bytes: &mut [u8]) -> usize {
        let mut rest = self.plaintext.get(self.taken..).unwrap_or_default();
        let len = rest.read(bytes).unwrap_or_default();
        self.taken += len;
        if !self.has_buffered() {
            (self.plaintext, self.taken) = (Vec::new(), 0);
        }
        len
    }

    /// Decrypts all of these bytes into `bytes`, and what has no room there into a buffer.
    fn decrypt(&mut self, mut records: &[u8], bytes: &mut [u8]) -> io::Result<Decrypted> {
        let (mut filled, mut has_closed) = (0, false);
        while !records.is_empty() && !has_closed {
            // That is the part of it for which rustls has room.
            self.connection.read_tls(&mut records)?;
            let state = self.connection.process_new_packets().map_err(|error| explain(&error))?;
            let mut left = state.plaintext_bytes_to_read();
            let mut reader = self.connection.reader();
            if let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty() && left > 0)
            {
                let len = reader.read(room)?;
                filled += len;
                left -= len;
            }
            let before = self.plaintext.len();
            self.plaintext.resize(before + left, 0);
            reader.read_exact(self.plaintext.get_mut(before..).unwrap_or_default())?;
            has_closed = state.peer_has_closed();
        }
        let is_nothing = filled == 0 && !has_closed;
        Ok(if is_nothing { Decrypted::Nothing } else { Decrypted::Bytes(filled) })
    }

    /// Encrypts the first of these bytes, as many as rustls takes at once, and appends the records; how many bytes.
    fn encrypt(&mut self, bytes: &[u8], records: &mut Vec<u8>) -> io::Result<usize> {
        let len = self.connection.writer().write(bytes)?;
        self.take_records(records)?;
        Ok(len)
    }

    fn take_records(&mut self, records: &mut Vec<u8>) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(records)?;
        }
        Ok(())
    }

    fn is_certified_as(&self, node: &str) -> bool {
        let certificate = self.connection.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.and_then(|leaf| ParsedCertificate::try_from(leaf).ok());
        let (Some(certificate), Ok(name)) = (certificate, DnsName::try_from(node)) else {
            return false;
        };
        verify_server_name(&certificate, &ServerName::DnsName(name)).is_ok()
    }
}

fn explain(error: &Error) -> io::Error {
    let text = match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "it does not speak TLS: both sides need --cluster-tls".to_owned()
        }
        error => explain_certificate(error),
    };
    io::Error::new(io::ErrorKind::InvalidData, Violation::Tls(text))
}

#[cfg(test)]
mod tests {
    use super::super::node_tls::NodeTlsFiles;
    use super::super::stop::Stop;
    use super::*;
    use crate::error::Timeout;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::time::Instant;

    const TIME: Duration = Duration::from_secs(30);

    /// Certificates for the name `n1`, which both sides use.
    fn tls() -> NodeTls {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(["n1".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = NodeTlsFiles {
            cert: file("cert", cert.pem()),
            key: file("key", key.serialize_pem()),
            ca: file("ca", ca.pem()),
        };
        NodeTls::new(&files, None).unwrap()
    }

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Both ends of a connection with TLS: of the side that has connected, and of the other one.
    fn pair() -> (PeerStream, PeerStream) {
        let (tls, (near, far)) = (tls(), sockets());
        let stop = Stop::new().unwrap();
        let limit = HandshakeLimit::new(TIME, &stop);
        let name = ServerName::try_from("n1").unwrap();
        let streams = std::thread::scope(|scope| {
            let far = scope.spawn(|| PeerStream::accept(far, Some(&tls), &limit));
            (PeerStream::connect(near, Some((&tls, name)), &limit), far.join().unwrap())
        });
        let streams = (streams.0.unwrap(), streams.1.unwrap());
        for stream in [&streams.0, &streams.1] {
            stream.set_read_timeout(Some(TIME)).unwrap();
            stream.set_write_timeout(Some(TIME)).unwrap();
        }
        streams
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..=250).cycle().take(len).collect()
    }

    #[test]
    fn a_peer_is_known_by_its_certificate() {
        let (near, far) = pair();
        for stream in [near, far] {
            assert!(stream.is_certified_as("n1"));
            assert!(!stream.is_certified_as("n2") && !stream.is_certified_as("no name!"));
        }
    }

    #[test]
    fn neither_side_waits_for_the_other_to_read_before_it_reads() {
        // Far more than sockets take: each side's writer is blocked until the other side's reader reads.
        let (near, far) = pair();
        let sent = bytes(32 << 20);
        std::thread::scope(|scope| {
            for stream in [&near, &far] {
                let sent = &sent;
                scope.spawn(move || {
                    let mut stream = stream;
                    stream.write_all(sent).unwrap();
                });
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(200));
                    let (mut stream, mut received) = (stream, vec![0; sent.len()]);
                    stream.read_exact(&mut received).unwrap();
                    assert!(received == *sent);
                });
            }
        });
    }

    #[test]
    fn a_writer_does_not_wait_for_a_reader_whose_peer_is_silent() {
        let (near, far) = pair();
        let (has_read, reads) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let result = (&near).read(&mut [0; 100]);
                has_read.send(result.unwrap()).unwrap();
            });
            std::thread::sleep(Duration::from_millis(100));
            let begun = Instant::now();
            (&near).write_all(b"hello").unwrap();
            let mut received = [0; 5];
            (&far).read_exact(&mut received).unwrap();
            assert!(received == *b"hello" && begun.elapsed() < TIME / 2);
            assert!(reads.try_recv().is_err());
            (&far).write_all(b"you").unwrap();
            assert_eq!(reads.recv().unwrap(), 3);
        });
    }

    #[test]
    fn what_has_no_room_is_buffered() {
        let (near, far) = pair();
        (&near).write_all(b"abcdef").unwrap();
        assert!(!far.has_buffered());
        let mut two = [0; 2];
        for (expected, is_more) in [(b"ab", true), (b"cd", true), (b"ef", false)] {
            assert_eq!((&far).read(&mut two).unwrap(), 2);
            assert_eq!((&two, far.has_buffered()), (expected, is_more));
        }
        near.shutdown(Shutdown::Both).unwrap();
        assert_eq!((&far).read(&mut two).unwrap(), 0);
    }

    #[test]
    fn nothing_follows_a_record_that_may_be_cut_off() {
        let (near, _far) = pair();
        near.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        let error = (&near).write_all(&bytes(32 << 20)).unwrap_err();
        assert!(super::super::is_silence(&error), "{error}");
        let error = (&near).write(b"more").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_handshake_that_takes_too_long_ends_in_time() {
        let (tls, (mut near, far)) = (tls(), sockets());
        let stop = Stop::new().unwrap();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            // The length of a message, and then a byte now and then.
            near.write_all(&[22, 3, 1, 1, 0, 1, 0, 0, 252]).unwrap();
            let slow = scope.spawn(move || {
                while near.write_all(&[3]).is_ok() && begun.elapsed() < TIME {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let limit = HandshakeLimit::new(Duration::from_millis(500), &stop);
            let error = PeerStream::accept(far, Some(&tls), &limit).unwrap_err();
            assert!(matches!(error, PeerError::Timeout(Timeout::Handshake)), "{error}");
            assert!(begun.elapsed() < TIME / 2);
            slow.join().unwrap();
        });
    }
}
