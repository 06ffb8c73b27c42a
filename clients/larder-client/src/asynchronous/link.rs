//! A connection with its socket.

use super::stream::Stream;
use crate::core::connection::shown;
use crate::core::link;
use crate::core::operation::{Failure, Operation};
use crate::core::outcome::{Broken, Progress, Trouble};
use crate::error::ErrorKind;
use bytes::Bytes;
use std::io;
use std::time::Instant;
use tokio::io::Interest;
use tokio::time::timeout_at;

/// A connection with its socket.
pub(crate) type Link = link::Link<Stream>;

impl Link {
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
            let is_sent = self.send_some(progress)?;
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
}
