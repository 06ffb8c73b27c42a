//! TLS of a connection that two threads may use at the same time: one reads, and the other writes.
//! They share the state of the TLS session. The lock order:
//!
//! ```text
//! sending   held while records are encrypted and sent, so that they are sent in the order of their encryption
//! session   held while bytes are encrypted or decrypted, never while a thread waits for the socket
//! ```
//! A writer therefore never waits for the peer to send, and a reader never waits for the peer to
//! read.

use super::handshake::HandshakeLimit;
use crate::error::{PeerError, Violation};
use larder_support::tls::explain_certificate;
use rustls::client::verify_server_name;
use rustls::pki_types::{DnsName, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{Connection, Error, InvalidMessage};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The maximum number of encrypted bytes that one read gets from the socket: about two records.
const READ_LEN: usize = 32 << 10;

/// The TLS state of a connection.
#[derive(Debug)]
pub(super) struct Encryption {
    sending: Mutex<RecordSender>,
    session: Mutex<Session>,
}

/// Encrypted records that are not sent yet.
#[derive(Debug, Default)]
struct RecordSender {
    records: Vec<u8>,
    /// Whether a send has failed. The peer may then have received only a part of a record, and
    /// could not decrypt later records.
    is_broken: bool,
}

/// The TLS session, and its decrypted bytes.
#[derive(Debug)]
struct Session {
    connection: Connection,
    /// Decrypted bytes that did not fit into the reader's buffer.
    plaintext: Vec<u8>,
    /// The number of bytes in `plaintext` that the reader has already taken.
    taken: usize,
}

/// The outcome of decrypting records.
#[derive(Debug, PartialEq, Eq)]
enum DecryptOutcome {
    /// The number of decrypted bytes for the reader; 0 if the peer has closed the session.
    Bytes(usize),
    /// No record is complete, or the complete records have no bytes for the reader.
    Nothing,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Encryption {
    /// Carries out the TLS handshake.
    pub(super) fn start(
        connection: Connection,
        socket: &TcpStream,
        limit: &HandshakeLimit<'_>,
    ) -> Result<Self, PeerError> {
        let mut session = Session { connection, plaintext: Vec::new(), taken: 0 };
        session.complete_handshake(socket, limit)?;
        Ok(Self { sending: Mutex::default(), session: Mutex::new(session) })
    }

    /// Returns whether the peer's certificate is for the node of this name.
    pub(super) fn is_certified_as(&self, node: &str) -> bool {
        lock(&self.session).is_certified_as(node)
    }

    pub(super) fn read(&self, mut socket: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
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
            Ok(DecryptOutcome::Bytes(len)) => Ok(len),
            Ok(DecryptOutcome::Nothing) => Err(io::ErrorKind::Interrupted.into()),
            Err(error) => {
                self.send_alert(socket);
                Err(error)
            }
        }
    }

    pub(super) fn write(&self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let mut sending = lock(&self.sending);
        if sending.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let len = lock(&self.session).encrypt(bytes, &mut sending.records)?;
        sending.send(socket)?;
        Ok(len)
    }

    /// Encrypts and sends as many bytes as a nonblocking socket accepts. Returns the number of
    /// encrypted bytes. The last of their records may be unsent: see [`Self::unsent_len`].
    pub(super) fn write_some(&self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let mut sending = lock(&self.sending);
        let mut rest = bytes;
        while sending.send_some(socket)? && !rest.is_empty() {
            let len = lock(&self.session).encrypt(rest, &mut sending.records)?;
            rest = rest.get(len..).unwrap_or_default();
        }
        Ok(bytes.len() - rest.len())
    }

    /// Returns the total length of the records that wait for room in a nonblocking socket.
    pub(super) fn unsent_len(&self) -> usize {
        lock(&self.sending).records.len()
    }

    /// Sends the TLS alert with the reason why the connection ends. Does nothing if another thread
    /// is sending or an earlier send has failed.
    fn send_alert(&self, socket: &TcpStream) {
        let mut sending = match self.sending.try_lock() {
            Ok(sending) => sending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !sending.is_broken {
            // An error is ignored: its only consequence is that the peer does not learn why the
            // connection closes.
            let _ = lock(&self.session).take_records(&mut sending.records);
            let _ = sending.send(socket);
        }
    }
}

impl RecordSender {
    fn send(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        self.is_broken = true;
        socket.write_all(&self.records)?;
        self.records.clear();
        self.is_broken = false;
        Ok(())
    }

    /// Sends as many bytes as a nonblocking socket accepts. Returns whether all records are sent.
    fn send_some(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        if self.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        while !self.records.is_empty() {
            match socket.write(&self.records) {
                Ok(len) => drop(self.records.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => {
                    self.is_broken = true;
                    return Err(error);
                }
            }
        }
        Ok(true)
    }
}

impl Session {
    fn complete_handshake(
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
                // An error is ignored: its only consequence is that the peer does not learn why the
                // connection closes.
                let _ = self.take_records(&mut records).and_then(|()| socket.write_all(&records));
                return Err(error.into());
            }
        }
    }

    fn has_buffered(&self) -> bool {
        self.taken < self.plaintext.len()
    }

    /// Moves buffered plaintext to `bytes`. Returns the number of bytes.
    fn take(&mut self, bytes: &mut [u8]) -> usize {
        let mut rest = self.plaintext.get(self.taken..).unwrap_or_default();
        let len = rest.read(bytes).unwrap_or_default();
        self.taken += len;
        if !self.has_buffered() {
            (self.plaintext, self.taken) = (Vec::new(), 0);
        }
        len
    }

    /// Decrypts all records. The first decrypted bytes fill `bytes`, and the rest goes to
    /// `plaintext`.
    fn decrypt(&mut self, mut records: &[u8], bytes: &mut [u8]) -> io::Result<DecryptOutcome> {
        let (mut filled, mut has_closed) = (0, false);
        while !records.is_empty() && !has_closed {
            // rustls reads only as much as its buffer can take, so the loop calls it again.
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
        Ok(if is_nothing { DecryptOutcome::Nothing } else { DecryptOutcome::Bytes(filled) })
    }

    /// Encrypts as many bytes as rustls accepts in one call, and appends the records. Returns the
    /// number of encrypted bytes.
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
            "the peer does not speak TLS: both sides need --cluster-tls".to_owned()
        }
        error => explain_certificate(error),
    };
    io::Error::new(io::ErrorKind::InvalidData, Violation::Tls(text))
}
