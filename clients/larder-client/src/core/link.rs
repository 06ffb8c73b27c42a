//! A pooled connection with its socket: the checks before and after use, and sending.

use super::connection::Connection;
use super::outcome::{CallFailure, Progress};
use crate::error::ErrorKind;
use crate::metrics::{CloseReason, OpenConnection};
use std::io;
use std::time::Instant;

/// Nonblocking operations of a socket.
pub(crate) trait Transfer {
    /// Returns whether the connection is open and has no unread input.
    ///
    /// # Errors
    /// The system's error.
    fn is_quiet(&mut self) -> io::Result<bool>;

    /// Sends as many bytes as the socket accepts, and returns their number.
    ///
    /// # Errors
    /// The system's error. After `WouldBlock`, the next call must pass the same bytes again.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

/// A pooled connection with its socket.
#[derive(Debug)]
pub(crate) struct Link<S> {
    pub(crate) stream: S,
    pub(crate) connection: Connection,
    /// The end of the connection's lifetime. No later call uses the connection. `None` if the
    /// lifetime is unlimited.
    expires: Option<Instant>,
    open: OpenConnection,
}

impl<S: Transfer> Link<S> {
    /// Builds a link from a socket, the end of the connection's lifetime, and the guard that counts
    /// the connection as open.
    pub(crate) fn new((stream, expires, open): (S, Option<Instant>, OpenConnection)) -> Self {
        Self { stream, connection: Connection::default(), expires, open }
    }

    /// Closes the connection for `reason`.
    pub(crate) fn close(mut self, reason: CloseReason) {
        self.open.closes(reason);
    }

    /// Checks an idle connection before use.
    ///
    /// # Errors
    /// The reason for closing the connection: the connection is too old or has failed, or the
    /// server has closed it or sent unsolicited bytes. Unsolicited bytes could look like the reply
    /// to the next request.
    pub(crate) fn check_idle(&mut self) -> Result<(), CloseReason> {
        if self.is_over() {
            return Err(CloseReason::Lifetime);
        }
        let is_quiet = self.stream.is_quiet().unwrap_or(false);
        if is_quiet { Ok(()) } else { Err(CloseReason::ServerClosed) }
    }

    /// Checks a connection after a call.
    ///
    /// # Errors
    /// The reason for closing the connection: it has failed, has unsent requests, incomplete
    /// replies or unread bytes, or is too old.
    pub(crate) fn check_used(&self) -> Result<(), CloseReason> {
        if !self.connection.is_settled() {
            return Err(CloseReason::Abandoned);
        }
        if self.is_over() { Err(CloseReason::Lifetime) } else { Ok(()) }
    }

    fn is_over(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }

    /// Sends as many bytes as the socket accepts. Returns whether all bytes are sent.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn send_some(&mut self, progress: &mut Progress) -> Result<bool, CallFailure> {
        while !self.connection.output().is_empty() {
            match self.stream.send(self.connection.output()) {
                Ok(0) => return Err(CallFailure::Lost(ErrorKind::Closed)),
                Ok(len) => {
                    self.connection.sent(len);
                    progress.sent += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(CallFailure::io(error)),
            }
        }
        Ok(true)
    }
}
