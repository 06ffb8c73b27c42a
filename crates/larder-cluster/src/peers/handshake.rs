//! The code that both sides of a handshake share: the time limit, and the function that reads
//! frames.

use super::stop::Stop;
use crate::error::{LocalError, PeerError, Timeout, Violation};
use larder_replica::{Frame, HANDSHAKE_FRAME_LEN_MAX};
use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The interval at which a waiting read checks whether the connection is still wanted.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The first two bytes of TLS records: the type (handshake or alert), and the major version.
const TLS_RECORDS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

/// The time limit of a handshake, including the TLS handshake before it.
#[derive(Clone, Copy)]
pub(crate) struct HandshakeLimit<'a> {
    end: Instant,
    stop: &'a Stop,
    is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> HandshakeLimit<'a> {
    /// Creates the limit for a handshake that starts now and may take `time`. The handshake also
    /// fails when the node shuts down.
    pub(crate) fn new(time: Duration, stop: &'a Stop) -> Self {
        Self { end: Instant::now() + time, stop, is_wanted: &|| true }
    }

    /// Makes the handshake also fail when `is_wanted` returns false.
    pub(crate) fn while_wanted(self, is_wanted: &'a dyn Fn() -> bool) -> Self {
        Self { is_wanted, ..self }
    }

    /// Reads at least one byte from `stream`. `socket` is the socket of `stream`.
    ///
    /// # Errors
    /// [`Timeout::Handshake`], [`LocalError::Stopped`], [`LocalError::Replaced`], or the connection
    /// has failed or ended.
    pub(crate) fn read(
        &self,
        socket: &TcpStream,
        mut stream: impl Read,
        bytes: &mut [u8],
    ) -> Result<usize, PeerError> {
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Timeout::Handshake.into());
            }
            if self.stop.is_set() {
                return Err(LocalError::Stopped.into());
            }
            if !(self.is_wanted)() {
                return Err(LocalError::Replaced.into());
            }
            socket.set_read_timeout(Some(left.min(POLL_INTERVAL)))?;
            match stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => return Ok(len),
                Err(error) if is_silence(&error) => (),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns whether a read has timed out or was interrupted. The caller may then read again.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Reads the first frame of `input`. Returns the frame and its length in bytes, or `None` if it is
/// incomplete.
///
/// # Errors
/// The peer speaks TLS, or the frame is corrupt, malformed or too long.
pub(crate) fn handshake_frame(input: &[u8]) -> Result<Option<(Frame<'_>, usize)>, PeerError> {
    if TLS_RECORDS.iter().any(|head| input.starts_with(head)) {
        // Without this check, the error would be an invalid frame length.
        return Err(Violation::SpeaksTls.into());
    }
    Ok(Frame::read(input, HANDSHAKE_FRAME_LEN_MAX)?)
}
