//! A pooled connection with its socket, for Tokio.

use super::stream::Stream;
use crate::core::connection::shown;
use crate::core::link;
use crate::core::operation::{Operation, ReplyFailure};
use crate::core::outcome::{CallFailure, FailedCall, Progress};
use crate::error::ErrorKind;
use bytes::Bytes;
use std::io;
use std::time::Instant;
use tokio::io::Interest;
use tokio::time::timeout_at;

pub(crate) type Link = link::Link<Stream>;

impl Link {
    /// Sends the requests of an operation and reads the replies. If the future is dropped while
    /// replies are pending, the pool closes the connection.
    ///
    /// # Errors
    /// The operation failed: see [`FailedCall`].
    pub(crate) async fn call<O: Operation>(
        &mut self,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, FailedCall> {
        let reads = operation.reads();
        operation.encode(&mut self.connection);
        let mut progress = Progress::default();
        let exchange = self.exchange(operation, &mut progress);
        let exchanged = match timeout_at(deadline.into(), exchange).await {
            Ok(exchanged) => exchanged,
            Err(_) => Err(CallFailure::Lost(ErrorKind::Timeout)),
        };
        exchanged.map_err(|failure| FailedCall::new(failure, progress, reads))
    }

    async fn exchange<O: Operation>(
        &mut self,
        operation: &mut O,
        progress: &mut Progress,
    ) -> Result<O::Output, CallFailure> {
        loop {
            let reply = self.receive(progress).await?;
            let Some(output) = operation.take(&reply).map_err(CallFailure::Reply)? else {
                continue;
            };
            if self.connection.is_settled() {
                return Ok(output);
            }
            // Other bytes follow the reply, or part of the request is unsent. The reply may answer
            // another request.
            return Err(CallFailure::Reply(ReplyFailure::unexpected(shown(&reply))));
        }
    }

    /// Returns the next reply. Before each read, sends as much of the remaining output as the
    /// socket accepts. While the function waits to send, it also reads, because a server stops
    /// reading requests if its client does not read replies.
    async fn receive(&mut self, progress: &mut Progress) -> Result<Bytes, CallFailure> {
        loop {
            match self.connection.next_reply() {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => (),
                Err(garbage) => {
                    return Err(CallFailure::Reply(ReplyFailure::unexpected(garbage.0)));
                }
            }
            let is_sent = self.send_some(progress)?;
            match self.stream.try_read(self.connection.room()) {
                Ok(0) => return Err(CallFailure::Lost(ErrorKind::Closed)),
                Ok(len) => {
                    self.connection.received(len);
                    progress.received += len;
                    // Yields regularly, because a server that sends without pause would otherwise
                    // keep the thread busy, and the call would miss its deadline.
                    tokio::task::consume_budget().await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let write = if is_sent { None } else { Some(Interest::WRITABLE) };
                    let interest =
                        write.map_or(Interest::READABLE, |write| write.add(Interest::READABLE));
                    self.stream.ready(interest).await.map_err(CallFailure::io)?;
                }
                Err(error) => return Err(CallFailure::io(error)),
            }
        }
    }
}
