//! A connection of a pool with its socket: when it may be used, and what is sent on it.

use super::connection::Connection;
use super::outcome::{Progress, Trouble};
use crate::error::ErrorKind;
use crate::metrics::{CloseReason, OpenConnection};
use std::io;
use std::time::Instant;

/// A socket that does what can be done without waiting.
pub(crate) trait Transfer {
    /// Whether nothing has arrived, nor the end of the connection.
    ///
    /// # Errors
    /// The system's.
    fn is_quiet(&mut self) -> io::Result<bool>;

    /// Sends what there is room for.
    ///
    /// # Errors
    /// The system's. After `WouldBlock`, the same bytes are the first ones of the next call.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

/// A connection with its socket.
#[derive(Debug)]
pub(crate) struct Link<S> {
    pub(crate) stream: S,
    pub(crate) connection: Connection,
    /// When it is to be closed, however much it is used.
    expires: Option<Instant>,
    open: OpenConnection,
}

impl<S: Transfer> Link<S> {
    /// A link over an open connection: its socket, when it is to be closed, and what counts it as open.
    pub(crate) fn new((stream, expires, open): (S, Option<Instant>, OpenConnection)) -> Self {
        Self { stream, connection: Connection::default(), expires, open }
    }

    /// Closes it.
    pub(crate) fn close(mut self, reason: CloseReason) {
        self.open.closes(reason);
    }

    /// # Errors
    /// Why it is to be closed instead of being used: it is too old, or the server has closed it or sent something that
    /// nobody asked for, which could pass for the answer to the next request.
    pub(crate) fn check_idle(&mut self) -> Result<(), CloseReason> {
        if self.is_over() {
            return Err(CloseReason::Lifetime);
        }
        let is_quiet = self.stream.is_quiet().unwrap_or(false);
        if is_quiet { Ok(()) } else { Err(CloseReason::ServerClosed) }
    }

    /// # Errors
    /// Why it is to be closed after a call: not all requests have been answered to the end, or it is too old.
    pub(crate) fn check_used(&self) -> Result<(), CloseReason> {
        if !self.connection.is_settled() {
            return Err(CloseReason::Abandoned);
        }
        if self.is_over() { Err(CloseReason::Lifetime) } else { Ok(()) }
    }

    fn is_over(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }

    /// Sends what there is room for; whether that is all.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn send_some(&mut self, progress: &mut Progress) -> Result<bool, Trouble> {
        while !self.connection.output().is_empty() {
            match self.stream.send(self.connection.output()) {
                Ok(0) => return Err(Trouble::Lost(ErrorKind::Closed)),
                Ok(len) => {
                    self.connection.sent(len);
                    progress.sent += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(Trouble::io(error)),
            }
        }
        Ok(true)
    }
}
