//! What both sides of a greeting need: a limit to its time, and its frames.

use super::stop::Stop;
use larder_replica::{Frame, GREETING_LEN_MAX};
use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long a read waits before it looks whether the server ends.
const SLICE: Duration = Duration::from_millis(200);
/// How a record of TLS begins: a handshake or an alert, and the major version.
const TLS_RECORDS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

/// How long a greeting, and the TLS handshake before it, may take together.
#[derive(Clone, Copy)]
pub(crate) struct HandshakeLimit<'a> {
    end: Instant,
    stop: &'a Stop,
}

impl<'a> HandshakeLimit<'a> {
    /// A greeting that begins now.
    pub(crate) fn new(time: Duration, stop: &'a Stop) -> Self {
        Self { end: Instant::now() + time, stop }
    }

    /// Reads at least one byte from `stream`, whose socket is `socket`.
    ///
    /// # Errors
    /// The time is over, the server stops, or the peer has closed the connection.
    pub(crate) fn read(
        &self,
        socket: &TcpStream,
        mut stream: impl Read,
        bytes: &mut [u8],
    ) -> io::Result<usize> {
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the greeting takes too long"));
            }
            if self.stop.is_set() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            socket.set_read_timeout(Some(left.min(SLICE)))?;
            match stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => return Ok(len),
                Err(error) if is_silence(&error) => (),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a read ended because nothing came in time.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// The first frame of a greeting, and how many bytes it takes; `None` if more has to come.
///
/// # Errors
/// The peer does not speak the replication format.
pub(crate) fn handshake_frame(input: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
    if TLS_RECORDS.iter().any(|head| input.starts_with(head)) {
        // Read as a frame, that would be longer than one may be.
        return Err(io::Error::other("it speaks TLS: both sides need --cluster-tls"));
    }
    Frame::read(input, GREETING_LEN_MAX).map_err(io::Error::other)
}
