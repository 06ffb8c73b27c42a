//! A connection to another node, plain or with TLS. Two threads may use it at the same time: one
//! reads, and the other writes.

use super::encryption::Encryption;
use super::handshake::HandshakeLimit;
use super::node_tls::NodeTls;
use crate::error::{LocalError, PeerError};
use larder_replica::Frame;
use rustls::Connection;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A connection. Threads read and write through `&PeerStream`. At any time, at most one thread
/// reads and at most one writes.
#[derive(Debug)]
pub(crate) struct PeerStream {
    socket: TcpStream,
    tls: Option<Box<Encryption>>,
}

impl PeerStream {
    /// Wraps an accepted connection. With TLS, carries out the TLS handshake, which requires a
    /// valid certificate from the peer.
    ///
    /// # Errors
    /// The TLS handshake fails or takes too long, or the node shuts down.
    pub(crate) fn accept(
        socket: TcpStream,
        tls: Option<&NodeTls>,
        limit: &HandshakeLimit<'_>,
    ) -> Result<Self, PeerError> {
        let connection = tls.map(NodeTls::accept).transpose().map_err(LocalError::Tls)?;
        Self::start(socket, connection, limit)
    }

    /// Wraps an outgoing connection. With TLS, carries out the TLS handshake, which requires a
    /// valid certificate for the given name.
    ///
    /// # Errors
    /// The TLS handshake fails or takes too long, or the node shuts down.
    pub(crate) fn connect(
        socket: TcpStream,
        tls: Option<(&NodeTls, ServerName<'static>)>,
        limit: &HandshakeLimit<'_>,
    ) -> Result<Self, PeerError> {
        let connection = tls.map(|(tls, name)| tls.connect(name)).transpose();
        Self::start(socket, connection.map_err(LocalError::Tls)?, limit)
    }

    fn start(
        socket: TcpStream,
        connection: Option<Connection>,
        limit: &HandshakeLimit<'_>,
    ) -> Result<Self, PeerError> {
        let Some(connection) = connection else { return Ok(Self { socket, tls: None }) };
        let encryption = Encryption::start(connection, &socket, limit);
        let encryption = encryption.map_err(PeerError::in_tls_handshake)?;
        Ok(Self { socket, tls: Some(Box::new(encryption)) })
    }

    /// Receives bytes of a handshake, and appends them to `input`.
    ///
    /// # Errors
    /// The errors of [`HandshakeLimit::read`].
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

    /// Makes [`Self::read_some`] and [`StreamWriter::write`] usable on this stream: neither waits.
    /// Other reads and writes fail where they would wait.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        self.socket.set_nonblocking(true)
    }

    /// Reads the bytes that have arrived on a nonblocking stream, at most as many as `bytes` has
    /// room for. Returns their number, which is 0 at the end of the stream, or `None` if no bytes
    /// have arrived.
    pub(crate) fn read_some(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let mut stream = self;
        loop {
            match stream.read(bytes) {
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends as many bytes as a nonblocking stream accepts. Returns their number.
    fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(tls) = &self.tls {
            return tls.write_some(&self.socket, bytes);
        }
        let mut len = 0;
        while let Some(rest) = bytes.get(len..).filter(|rest| !rest.is_empty()) {
            match (&self.socket).write(rest) {
                Ok(sent) => len += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }

    /// Returns the number of encrypted bytes that wait for room in a nonblocking stream.
    fn unsent_len(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.unsent_len())
    }

    /// Makes the kernel discard unsent bytes when the connection is closed, and close the
    /// connection if the peer's kernel does not acknowledge sent bytes within `time`. Otherwise,
    /// the kernel could deliver the bytes minutes later, after the end of a partition.
    pub(crate) fn discard_late_bytes(&self, time: Duration) -> io::Result<()> {
        let socket = SockRef::from(&self.socket);
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_tcp_user_timeout(Some(time))
    }

    /// Sends a `Refused` frame if [`PeerError::refusal`] returns a reason. Returns the error.
    pub(crate) fn refuse(&self, error: impl Into<PeerError>) -> PeerError {
        let error = error.into();
        if let Some(reason) = error.refusal() {
            let mut out = Vec::new();
            Frame::Refused(reason).write(&mut out);
            let mut stream = self;
            // An error is ignored: its only consequence is that the peer does not learn why the
            // connection ends.
            let _ = stream.write_all(&out);
        }
        error
    }

    /// Closes the socket for all threads. Does not send TLS's `close_notify`, because sending it
    /// could block. The peer detects a truncated stream without it, because frames have a length.
    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Returns whether the peer's certificate is for the node of this name. Always true without
    /// TLS.
    pub(crate) fn is_certified_as(&self, node: &str) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_certified_as(node))
    }
}

/// Writes to a nonblocking stream, and limits the time for which the stream accepts no bytes.
#[derive(Debug)]
pub(crate) struct StreamWriter {
    timeout: Duration,
    /// The time at which the stream last accepted bytes, and the number of encrypted bytes that
    /// were still unsent; `None` if the stream has room.
    blocked: Option<(Instant, usize)>,
}

impl StreamWriter {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, blocked: None }
    }

    /// Sends as many bytes as the stream accepts. Returns their number. With TLS, their last
    /// records may be sent by a later call, which may have no bytes.
    ///
    /// # Errors
    /// The connection has failed. [`io::ErrorKind::TimedOut`]: it has accepted no bytes for the
    /// time limit.
    pub(crate) fn write(&mut self, stream: &PeerStream, bytes: &[u8]) -> io::Result<usize> {
        let len = stream.write_some(bytes)?;
        let unsent = stream.unsent_len();
        if bytes.is_empty() && unsent == 0 {
            // This does not show whether the stream has room.
            return Ok(0);
        }
        if len == bytes.len() && unsent == 0 {
            self.blocked = None;
            return Ok(len);
        }
        let now = Instant::now();
        let without_progress = self.blocked.filter(|(_, before)| len == 0 && unsent == *before);
        let (since, _) = *self.blocked.insert(without_progress.unwrap_or((now, unsent)));
        if now.duration_since(since) > self.timeout {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(len)
    }
}

impl AsFd for PeerStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for &PeerStream {
    /// Reads as a socket does. With TLS, fails with `Interrupted` if the bytes that have arrived
    /// complete no record with bytes for the reader.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => (&self.socket).read(bytes),
            Some(tls) => tls.read(&self.socket, bytes),
        }
    }
}

impl Write for &PeerStream {
    /// Writes as a socket does. With TLS, every write after a failed send fails.
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::node_tls::NodeTlsFiles;
    use super::super::stop::Stop;
    use super::*;
    use crate::error::Timeout;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use std::net::TcpListener;
    use std::sync::mpsc;

    const TIME: Duration = Duration::from_secs(30);

    /// Creates certificates for the name `n1`, which both sides use.
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

    /// Returns both ends of a TLS connection, the connecting side first.
    pub(in super::super) fn pair() -> (PeerStream, PeerStream) {
        let (tls, (near, far)) = (tls(), sockets());
        let stop = Stop::new().unwrap();
        let limit = HandshakeLimit::new(TIME, &stop);
        let name = ServerName::try_from("n1").unwrap();
        let streams = std::thread::scope(|scope| {
            let far = scope.spawn(|| {
                let limit = HandshakeLimit::new(TIME, &stop);
                PeerStream::accept(far, Some(&tls), &limit)
            });
            (PeerStream::connect(near, Some((&tls, name)), &limit), far.join().unwrap())
        });
        let streams = (streams.0.unwrap(), streams.1.unwrap());
        for stream in [&streams.0, &streams.1] {
            stream.set_read_timeout(Some(TIME)).unwrap();
            stream.set_write_timeout(Some(TIME)).unwrap();
        }
        streams
    }

    /// Returns both ends of a connection without TLS.
    pub(in super::super) fn plain_pair() -> (PeerStream, PeerStream) {
        let (near, far) = sockets();
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(TIME)).unwrap();
        }
        let stop = Stop::new().unwrap();
        let limit = HandshakeLimit::new(TIME, &stop);
        let stream = |socket| PeerStream::accept(socket, None, &limit).unwrap();
        (stream(near), stream(far))
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..=250).cycle().take(len).collect()
    }

    #[test]
    fn a_certificate_identifies_the_peer() {
        let (near, far) = pair();
        for stream in [near, far] {
            assert!(stream.is_certified_as("n1"));
            assert!(!stream.is_certified_as("n2") && !stream.is_certified_as("no name!"));
        }
    }

    #[test]
    fn both_sides_read_while_their_writers_are_blocked() {
        // The sockets cannot buffer this many bytes, so each writer is blocked until the reader of
        // the other side reads.
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
    fn a_writer_does_not_wait_while_the_reader_waits_for_the_peer() {
        let (near, far) = pair();
        let (has_read, reads) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let result = (&near).read(&mut [0; 100]);
                has_read.send(result.unwrap()).unwrap();
            });
            std::thread::sleep(Duration::from_millis(100));
            let start = Instant::now();
            (&near).write_all(b"hello").unwrap();
            let mut received = [0; 5];
            (&far).read_exact(&mut received).unwrap();
            assert!(received == *b"hello" && start.elapsed() < TIME / 2);
            assert!(reads.try_recv().is_err());
            (&far).write_all(b"you").unwrap();
            assert_eq!(reads.recv().unwrap(), 3);
        });
    }

    #[test]
    fn plaintext_without_room_is_buffered() {
        let (near, far) = pair();
        (&near).write_all(b"abcdef").unwrap();
        let mut two = [0; 2];
        for expected in [b"ab", b"cd", b"ef"] {
            assert_eq!((&far).read(&mut two).unwrap(), 2);
            assert_eq!(two, *expected);
        }
        far.set_nonblocking().unwrap();
        assert_eq!(far.read_some(&mut two).unwrap(), None);
        near.shutdown(Shutdown::Both).unwrap();
        assert_eq!((&far).read(&mut two).unwrap(), 0);
    }

    #[test]
    fn a_failed_write_breaks_the_connection_for_later_writes() {
        let (near, _far) = pair();
        near.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        let error = (&near).write_all(&bytes(32 << 20)).unwrap_err();
        assert!(super::super::is_silence(&error), "{error}");
        let error = (&near).write(b"more").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_slow_handshake_times_out() {
        let (tls, (mut near, far)) = (tls(), sockets());
        let stop = Stop::new().unwrap();
        let start = Instant::now();
        std::thread::scope(|scope| {
            // Send the header of a record, and then one byte every 20 ms.
            near.write_all(&[22, 3, 1, 1, 0, 1, 0, 0, 252]).unwrap();
            let slow = scope.spawn(move || {
                while near.write_all(&[3]).is_ok() && start.elapsed() < TIME {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let limit = HandshakeLimit::new(Duration::from_millis(500), &stop);
            let error = PeerStream::accept(far, Some(&tls), &limit).unwrap_err();
            assert!(matches!(error, PeerError::Timeout(Timeout::Handshake)), "{error}");
            assert!(start.elapsed() < TIME / 2);
            slow.join().unwrap();
        });
    }

    #[test]
    fn a_nonblocking_write_fails_once_the_peer_has_read_nothing_for_the_time_limit() {
        for (near, far) in [pair(), plain_pair()] {
            check_write_timeout(&near, &far);
        }
    }

    fn check_write_timeout(near: &PeerStream, mut far: &PeerStream) {
        near.set_nonblocking().unwrap();
        let (piece, timeout) = (bytes(32 << 20), Duration::from_millis(300));
        let mut writer = StreamWriter::new(timeout);
        writer.write(near, &piece).unwrap();
        // Writes continue while the peer reads, however long this takes.
        let start = Instant::now();
        while start.elapsed() < 2 * timeout {
            far.read_exact(&mut vec![0; 256 << 10]).unwrap();
            writer.write(near, b"").unwrap();
            writer.write(near, &piece).unwrap();
        }
        let error = loop {
            let sent = writer.write(near, b"").and_then(|_| writer.write(near, &piece));
            if let Err(error) = sent {
                break error;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
