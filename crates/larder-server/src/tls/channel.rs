//! A connection's TLS state, independent of its socket.
//!
//! The connections of a thread share two buffers: one for decrypted records, and one for the
//! encrypted replies of a poll. Between polls, a connection buffers at most an incomplete record or
//! handshake message, and usually nothing.

use super::counts::TlsCounts;
use larder_support::tls::explain_certificate;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{Error, HandshakeKind, ServerConfig};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The maximum length of incomplete input, in bytes. A TLS record (16 KiB and some overhead) and a
/// handshake message (64 KiB) fit.
const PARTIAL_MAX: usize = 96 << 10;
/// The maximum overhead of a record in TLS 1.2 and TLS 1.3, in bytes.
const RECORD_EXTRA: usize = 64;
/// The maximum plaintext length of a TLS record, in bytes.
const RECORD_LEN: usize = 16 << 10;

/// The memory of a connection's TLS keys and state without buffered input, in bytes (measured).
pub(crate) const FIXED_LEN: usize = 3584;

/// The TLS state of a connection.
pub struct Channel {
    rustls: UnbufferedServerConnection,
    /// Input that starts with the first incomplete record.
    partial: Vec<u8>,
    phase: Phase,
    /// Whether the peer has sent input.
    has_input: bool,
    counts: Arc<TlsCounts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Handshake,
    Open,
    /// The peer has sent the close alert.
    HalfClosed,
    /// The channel can send nothing more, because the session has failed or the connection has
    /// closed during the handshake.
    Broken,
}

impl Channel {
    /// Creates the state of a new connection.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub(crate) fn new(config: Arc<ServerConfig>, counts: Arc<TlsCounts>) -> Result<Self, Error> {
        let rustls = UnbufferedServerConnection::new(config)?;
        counts.open.fetch_add(1, Relaxed);
        Ok(Self { rustls, partial: Vec::new(), phase: Phase::Handshake, has_input: false, counts })
    }

    /// Returns whether the handshake is incomplete.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.phase == Phase::Handshake
    }

    /// Returns whether the peer has not sent input yet.
    pub(crate) fn is_unused(&self) -> bool {
        !self.has_input
    }

    /// Returns whether the peer has sent the close alert.
    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::HalfClosed
    }

    /// Returns whether no incomplete record is buffered.
    pub(crate) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Returns the memory of buffered input, in bytes. Excludes the [`FIXED_LEN`] bytes per
    /// connection, because `-c` already limits their total.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Processes input: appends the peer's data to `plaintext`, and TLS messages for the peer to
    /// `ciphertext`.
    ///
    /// # Errors
    /// The input is not TLS or violates the protocol, or the client's certificate is refused.
    /// `ciphertext` then ends with rustls's alert, if there is one.
    pub(crate) fn decrypt(
        &mut self,
        fresh: &mut [u8],
        plaintext: &mut Vec<u8>,
        ciphertext: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.has_input |= !fresh.is_empty();
        if self.partial.is_empty() {
            let done = self.process(fresh, plaintext, ciphertext)?;
            self.partial.extend_from_slice(fresh.get(done..).unwrap_or_default());
        } else {
            let mut input = std::mem::take(&mut self.partial);
            input.extend_from_slice(fresh);
            let done = self.process(&mut input, plaintext, ciphertext)?;
            if done < input.len() {
                input.drain(..done);
                self.partial = input;
            }
        }
        if self.partial.len() > PARTIAL_MAX {
            return Err(self.broken("handshake message too long"));
        }
        Ok(())
    }

    /// Processes the complete records in `input`. Returns the number of consumed bytes.
    fn process(
        &mut self,
        input: &mut [u8],
        plaintext: &mut Vec<u8>,
        ciphertext: &mut Vec<u8>,
    ) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let rest = input.get_mut(done..).unwrap_or_default();
            let UnbufferedStatus { mut discard, state } = self.rustls.process_tls_records(rest);
            let mut waits = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(io::Error::other)?;
                        discard += record.discard;
                        plaintext.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut message)) => {
                    encode(ciphertext, |room| message.encode(room))?;
                }
                Ok(ConnectionState::TransmitTlsData(message)) => message.done(),
                Ok(ConnectionState::PeerClosed) => {
                    self.count_session();
                    self.phase = Phase::HalfClosed;
                }
                Ok(ConnectionState::WriteTraffic(_)) => {
                    if self.phase == Phase::Handshake {
                        self.count_session();
                        self.phase = Phase::Open;
                    }
                    waits = true;
                }
                // Any other state that needs a reply involves early data, which the server does not
                // offer.
                Ok(_) => waits = true,
                Err(error) => {
                    done += discard;
                    self.explain(input.get_mut(done..).unwrap_or_default(), ciphertext);
                    return Err(self.broken(explain_certificate(&error)));
                }
            }
            done += discard;
            if waits {
                return Ok(done);
            }
        }
    }

    /// Counts a new session when its handshake completes. Does not count a resumed session.
    fn count_session(&self) {
        let agreed = self.phase == Phase::Handshake && !self.rustls.is_handshaking();
        if agreed && self.rustls.handshake_kind() != Some(HandshakeKind::Resumed) {
            self.counts.new_sessions.fetch_add(1, Relaxed);
        }
    }

    /// Appends the alert with the reason for the failure. Call this only once: the first call takes
    /// the alert that rustls has queued, and a second call would process the faulty input again.
    fn explain(&mut self, input: &mut [u8], ciphertext: &mut Vec<u8>) {
        if let UnbufferedStatus { state: Ok(ConnectionState::EncodeTlsData(mut alert)), .. } =
            self.rustls.process_tls_records(input)
        {
            // Ignore an error: without the alert, the peer only sees the socket close.
            let _ = encode(ciphertext, |room| alert.encode(room));
        }
    }

    fn broken(&mut self, reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
        if self.phase != Phase::Handshake {
            self.counts.proto_errors.fetch_add(1, Relaxed);
            self.phase = Phase::Broken;
        }
        io::Error::other(reason)
    }

    /// Encrypts `plain` and appends the records to `ciphertext`.
    ///
    /// # Errors
    /// The connection cannot send anything more.
    pub(crate) fn encrypt(&mut self, plain: &[u8], ciphertext: &mut Vec<u8>) -> io::Result<()> {
        let UnbufferedStatus { discard, state } =
            self.rustls.process_tls_records(&mut self.partial);
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        debug_assert_eq!(discard, 0, "decrypt() has processed all complete records");
        let room = plain.len() + (plain.len() / RECORD_LEN + 1) * RECORD_EXTRA;
        append(ciphertext, room, |room| encrypted(traffic.encrypt(plain, room)))
    }

    /// Appends the close alert to `ciphertext` if the connection can still send. If the handshake
    /// is incomplete, counts a handshake error.
    pub(crate) fn close(&mut self, ciphertext: &mut Vec<u8>) {
        if self.phase == Phase::Handshake {
            self.counts.handshake_errors.fetch_add(1, Relaxed);
            self.phase = Phase::Broken;
        }
        if self.phase == Phase::Broken {
            return;
        }
        let UnbufferedStatus { state, .. } = self.rustls.process_tls_records(&mut self.partial);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state {
            // Ignore an error: without the alert, the peer only sees the socket close.
            let close = |room: &mut [u8]| encrypted(traffic.queue_close_notify(room));
            let _ = append(ciphertext, RECORD_EXTRA, close);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Relaxed);
    }
}

/// The result of writing into a buffer.
enum Fit {
    /// The number of written bytes.
    Written(usize),
    /// The buffer is too small. The number is the required size.
    Needs(usize),
}

fn encrypted(written: Result<usize, EncryptError>) -> io::Result<Fit> {
    match written {
        Ok(len) => Ok(Fit::Written(len)),
        Err(EncryptError::InsufficientSize(needed)) => Ok(Fit::Needs(needed.required_size)),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn encode(
    ciphertext: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> io::Result<()> {
    append(ciphertext, 0, |room| match write(room) {
        Ok(len) => Ok(Fit::Written(len)),
        Err(EncodeError::InsufficientSize(needed)) => Ok(Fit::Needs(needed.required_size)),
        Err(error) => Err(io::Error::other(error)),
    })
}

/// Calls `write` to append to `ciphertext`, with space for `room` bytes. If that space is too
/// small, calls `write` again with the required space.
fn append(
    ciphertext: &mut Vec<u8>,
    mut room: usize,
    mut write: impl FnMut(&mut [u8]) -> io::Result<Fit>,
) -> io::Result<()> {
    let before = ciphertext.len();
    loop {
        ciphertext.resize(before + room, 0);
        match write(ciphertext.get_mut(before..).unwrap_or_default()) {
            Ok(Fit::Written(len)) => {
                ciphertext.truncate(before + len);
                return Ok(());
            }
            Ok(Fit::Needs(more)) => room = more,
            Err(error) => {
                ciphertext.truncate(before);
                return Err(error);
            }
        }
    }
}
