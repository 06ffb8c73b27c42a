//! TLS of one connection, without its socket: it decrypts records and encrypts answers.
//!
//! Records are decrypted where they were read, into a buffer that a thread's connections share, and
//! answers are encrypted once a turn into another. What a connection keeps between turns is the part
//! of a record that has not all come: usually nothing.

use super::counts::TlsCounts;
use larder_support::tls::explain_certificate;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{Error, HandshakeKind, ServerConfig};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The longest piece of input that may wait for its rest, in bytes: a record of TLS has at most
/// 16 KiB and some, a message of a handshake 64 KiB.
const PARTIAL_MAX: usize = 96 << 10;
/// The overhead of a record, at most, in both versions, in bytes.
const RECORD_EXTRA: usize = 64;
/// Bytes in a record, at most.
const RECORD_LEN: usize = 16 << 10;

/// The memory of a connection's TLS, keys and state, without buffered input, in bytes; measured.
pub(crate) const FIXED_LEN: usize = 3584;

/// A connection's TLS.
pub struct Channel {
    rustls: UnbufferedServerConnection,
    /// Input from the first record on that is not whole.
    partial: Vec<u8>,
    phase: Phase,
    /// The peer has sent input.
    begun: bool,
    counts: Arc<TlsCounts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Handshake,
    Open,
    /// The peer sends no more.
    HalfClosed,
    /// Neither direction is open any more.
    Broken,
}

impl Channel {
    /// A conversation that has not begun.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub(crate) fn new(config: Arc<ServerConfig>, counts: Arc<TlsCounts>) -> Result<Self, Error> {
        let rustls = UnbufferedServerConnection::new(config)?;
        counts.open.fetch_add(1, Relaxed);
        Ok(Self { rustls, partial: Vec::new(), phase: Phase::Handshake, begun: false, counts })
    }

    /// Whether no request can have come yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.phase == Phase::Handshake
    }

    /// Whether the peer has sent nothing yet.
    pub(crate) fn is_unused(&self) -> bool {
        !self.begun
    }

    /// The peer has announced the end of its input.
    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::HalfClosed
    }

    /// No part of a record waits for its rest.
    pub(crate) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Memory that grows with what the peer sends, in bytes. What each connection has anyway,
    /// [`FIXED_LEN`], is not in it: `-c` bounds that.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Processes input: appends the peer's data to `plaintext`, and TLS's own messages to
    /// `ciphertext`.
    ///
    /// # Errors
    /// The input is not TLS, or violates the session's parameters. `ciphertext` then ends with an alert.
    pub(crate) fn decrypt(
        &mut self,
        fresh: &mut [u8],
        plaintext: &mut Vec<u8>,
        ciphertext: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.begun |= !fresh.is_empty();
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
            return Err(self.broken("a message of a handshake is too long"));
        }
        Ok(())
    }

    /// Processes the complete records; returns the number of bytes that were consumed.
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
                // Early data is not offered.
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

    /// Counts the session that a handshake has just agreed on, unless it is an earlier one resumed.
    fn count_session(&self) {
        let agreed = self.phase == Phase::Handshake && !self.rustls.is_handshaking();
        if agreed && self.rustls.handshake_kind() != Some(HandshakeKind::Resumed) {
            self.counts.new_sessions.fetch_add(1, Relaxed);
        }
    }

    /// Appends the alert that tells the peer why the connection ends. An alert that rustls has queued
    /// comes first; rustls must not be asked for more, because it would process the faulty input again.
    fn explain(&mut self, input: &mut [u8], ciphertext: &mut Vec<u8>) {
        if let UnbufferedStatus { state: Ok(ConnectionState::EncodeTlsData(mut alert)), .. } =
            self.rustls.process_tls_records(input)
        {
            // Without the alert the peer only sees the socket close.
            let _ = encode(ciphertext, |room| alert.encode(room));
        }
    }

    fn broken(&mut self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
        if self.phase != Phase::Handshake {
            self.counts.proto_errors.fetch_add(1, Relaxed);
            self.phase = Phase::Broken;
        }
        io::Error::other(why)
    }

    /// Encrypts `plain` and appends it to `ciphertext`.
    ///
    /// # Errors
    /// The connection cannot send any more.
    pub(crate) fn encrypt(&mut self, plain: &[u8], ciphertext: &mut Vec<u8>) -> io::Result<()> {
        let UnbufferedStatus { discard, state } =
            self.rustls.process_tls_records(&mut self.partial);
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        debug_assert_eq!(discard, 0, "all that is whole was gone through");
        let room = plain.len() + (plain.len() / RECORD_LEN + 1) * RECORD_EXTRA;
        append(ciphertext, room, |room| encrypted(traffic.encrypt(plain, room)))
    }

    /// Appends the announcement of the end to `ciphertext`, if the connection can still send, and counts
    /// a connection that ends before its handshake is complete.
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
            // Without the alert the peer only sees the socket close.
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

/// Whether there was room.
enum Fit {
    Written(usize),
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

/// Has `write` append to `ciphertext`, with room for `room` bytes, or for as many as it needs.
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
