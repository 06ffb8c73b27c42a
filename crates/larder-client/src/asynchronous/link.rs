//! A connection with its socket.

use super::shared::Opened;
use super::stream::Stream;
use crate::core::connection::{Connection, shown};
use crate::core::operation::{Failure, Operation};
use crate::core::outcome::{Broken, Progress, Trouble};
use crate::error::ErrorKind;
use crate::metrics::{CloseReason, OpenConnection};
use bytes::Bytes;
use std::io;
use std::time::Instant;
use tokio::io::Interest;
use tokio::time::timeout_at;

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
    pub(crate) fn check_idle(&self) -> Result<(), CloseReason> {
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

    /// Sends what an operation asks, and reads the replies. If it is dropped meanwhile, the connection is not settled.
    ///
    /// # Errors
    /// [`Broken`].
    pub(crate) async fn call<O: Operation>(
        &mut self,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, Broken> {
        let reads = operation.reads();
        operation.begin(&mut self.connection);
        let mut progress = Progress::default();
        let exchange = self.exchange(operation, &mut progress);
        let exchanged = match timeout_at(deadline.into(), exchange).await {
            Ok(exchanged) => exchanged,
            Err(_) => Err(Trouble::Lost(ErrorKind::Timeout)),
        };
        exchanged.map_err(|trouble| Broken::new(trouble, progress, reads))
    }

    async fn exchange<O: Operation>(
        &mut self,
        operation: &mut O,
        progress: &mut Progress,
    ) -> Result<O::Output, Trouble> {
        loop {
            let reply = self.receive(progress).await?;
            let Some(output) = operation.take(&reply).map_err(Trouble::Answered)? else { continue };
            if self.connection.is_settled() {
                return Ok(output);
            }
            // Whose are the bytes behind it? The output may be another's, too.
            return Err(Trouble::Answered(Failure::unexpected(shown(&reply))));
        }
    }

    /// The next reply. What is left to be sent is sent before, unless there are replies to be read: a server whose
    /// replies nobody reads reads no further requests.
    async fn receive(&mut self, progress: &mut Progress) -> Result<Bytes, Trouble> {
        loop {
            match self.connection.next_reply() {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => (),
                Err(garbage) => return Err(Trouble::Answered(Failure::unexpected(garbage.0))),
            }
            let is_sent = self.send(progress)?;
            match self.stream.try_read(self.connection.room()) {
                Ok(0) => return Err(Trouble::Lost(ErrorKind::Closed)),
                Ok(len) => {
                    self.connection.received(len);
                    progress.received += len;
                    // Otherwise a server that never stops to send would keep the thread, and the call from its deadline.
                    tokio::task::consume_budget().await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let write = if is_sent { None } else { Some(Interest::WRITABLE) };
                    let interest =
                        write.map_or(Interest::READABLE, |write| write.add(Interest::READABLE));
                    self.stream.ready(interest).await.map_err(Trouble::io)?;
                }
                Err(error) => return Err(Trouble::io(error)),
            }
        }
    }

    /// Sends what there is room for; whether that is all.
    fn send(&mut self, progress: &mut Progress) -> Result<bool, Trouble> {
        while !self.connection.output().is_empty() {
            match self.stream.try_write(self.connection.output()) {
                Ok(0) => return Err(Trouble::Lost(ErrorKind::Closed)),
                Ok(len) => {
                    self.connection.sent(len);
                    progress.sent += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(Trouble::io(error)),
            }
        }
        Ok(true)
    }
}
