//! A connection with its socket. The calling thread does all of its I/O.

use super::stream::{Opened, Stream};
use crate::core::connection::{Connection, shown};
use crate::core::operation::{Failure, Operation};
use crate::core::outcome::{Broken, Progress, Trouble};
use crate::error::ErrorKind;
use crate::metrics::{CloseReason, OpenConnection};
use bytes::Bytes;
use nix::poll::PollFlags;
use std::io;
use std::time::{Duration, Instant};

/// How long what has come by the deadline may be read. A server that never stops to send is given up then.
pub(super) const LATE_MAX: Duration = Duration::from_millis(10);

/// A connection with its socket.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Stream,
    connection: Connection,
    /// When it is to be closed, however much it is used.
    expires: Option<Instant>,
    open: OpenConnection,
}

impl Link {
    /// A link over an open connection.
    pub(crate) fn new((stream, expires, open): Opened) -> Self {
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

    /// Begins what an operation asks. What there is room for is sent.
    pub(crate) fn begin<O: Operation>(&mut self, operation: &mut O) -> Progress {
        operation.begin(&mut self.connection);
        let mut progress = Progress::default();
        // A connection that has failed shows that again when the operation goes on.
        drop(self.send_some(&mut progress));
        progress
    }

    /// Sends what is left of an operation, and reads the replies.
    ///
    /// # Errors
    /// [`Broken`].
    pub(crate) fn finish<O: Operation>(
        &mut self,
        operation: &mut O,
        mut progress: Progress,
        deadline: Instant,
    ) -> Result<O::Output, Broken> {
        let reads = operation.reads();
        self.exchange(operation, deadline, &mut progress)
            .map_err(|trouble| Broken::new(trouble, progress, reads))
    }

    fn exchange<O: Operation>(
        &mut self,
        operation: &mut O,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<O::Output, Trouble> {
        let end = deadline.max(Instant::now() + LATE_MAX);
        loop {
            let reply = self.receive(deadline, end, progress)?;
            let Some(output) = operation.take(&reply).map_err(Trouble::Answered)? else { continue };
            if self.connection.is_settled() {
                return Ok(output);
            }
            // Whose are the bytes behind it? The output may be another's, too.
            return Err(Trouble::Answered(Failure::unexpected(shown(&reply))));
        }
    }

    /// Sends what there is room for; whether that is all.
    fn send_some(&mut self, progress: &mut Progress) -> Result<bool, Trouble> {
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

    /// Sends what is left to be sent. It may leave a part if there are replies to be read before: a server whose replies
    /// nobody reads reads no further requests.
    fn send(&mut self, deadline: Instant, progress: &mut Progress) -> Result<(), Trouble> {
        while !self.send_some(progress)? {
            if self.stream.wait(deadline)?.contains(PollFlags::POLLIN) {
                break;
            }
        }
        Ok(())
    }

    /// The next reply. What is left to be sent is sent before. Nothing is waited for after the deadline, and nothing read
    /// after `end`.
    fn receive(
        &mut self,
        deadline: Instant,
        end: Instant,
        progress: &mut Progress,
    ) -> Result<Bytes, Trouble> {
        loop {
            match self.connection.next_reply() {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => (),
                Err(garbage) => return Err(Trouble::Answered(Failure::unexpected(garbage.0))),
            }
            self.send(deadline, progress)?;
            let is_sent = self.connection.output().is_empty();
            let now = Instant::now();
            if now >= end {
                return Err(Trouble::Lost(ErrorKind::Timeout));
            }
            let left = deadline.saturating_duration_since(now);
            match self.stream.read(self.connection.room(), left, is_sent)? {
                None => (),
                Some(0) => return Err(Trouble::Lost(ErrorKind::Closed)),
                Some(len) => {
                    self.connection.received(len);
                    progress.received += len;
                }
            }
        }
    }
}
