//! A pooled connection with its socket. The calling thread does all I/O of the connection.

use super::stream::Stream;
use crate::core::connection::shown;
use crate::core::link;
use crate::core::operation::{Operation, ReplyFailure};
use crate::core::outcome::{CallFailure, FailedCall, Progress};
use crate::error::ErrorKind;
use bytes::Bytes;
use nix::poll::PollFlags;
use std::time::{Duration, Instant};

/// The time for which a call may read if it starts to read near or after its deadline, for example
/// because it has waited for another server. The call then reads only data that has already
/// arrived. Without this limit, a server that sends without pause could keep the call reading
/// forever.
pub(super) const LATE_MAX: Duration = Duration::from_millis(10);

pub(crate) type Link = link::Link<Stream>;

impl Link {
    /// Encodes an operation's requests, and sends as many bytes as the socket accepts without
    /// waiting.
    pub(crate) fn start<O: Operation>(&mut self, operation: &mut O) -> Progress {
        operation.encode(&mut self.connection);
        let mut progress = Progress::default();
        // Ignores errors, because a failed connection returns an error again in `finish`.
        drop(self.send_some(&mut progress));
        progress
    }

    /// Sends the remaining requests of an operation and reads the replies.
    ///
    /// # Errors
    /// The operation failed: see [`FailedCall`].
    pub(crate) fn finish<O: Operation>(
        &mut self,
        operation: &mut O,
        mut progress: Progress,
        deadline: Instant,
    ) -> Result<O::Output, FailedCall> {
        let reads = operation.reads();
        self.exchange(operation, deadline, &mut progress)
            .map_err(|failure| FailedCall::new(failure, progress, reads))
    }

    fn exchange<O: Operation>(
        &mut self,
        operation: &mut O,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<O::Output, CallFailure> {
        let end = deadline.max(Instant::now() + LATE_MAX);
        loop {
            let reply = self.receive(deadline, end, progress)?;
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

    /// Sends output until all of it is sent or input arrives. The caller must then read the input,
    /// because a server stops reading requests if its client does not read replies.
    fn send(&mut self, deadline: Instant, progress: &mut Progress) -> Result<(), CallFailure> {
        while !self.send_some(progress)? {
            if self.stream.wait(deadline)?.contains(PollFlags::POLLIN) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the next reply. Sends output before each read. Stops waiting at the deadline, and
    /// stops reading at `end`.
    fn receive(
        &mut self,
        deadline: Instant,
        end: Instant,
        progress: &mut Progress,
    ) -> Result<Bytes, CallFailure> {
        loop {
            match self.connection.next_reply() {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => (),
                Err(garbage) => {
                    return Err(CallFailure::Reply(ReplyFailure::unexpected(garbage.0)));
                }
            }
            self.send(deadline, progress)?;
            let is_sent = self.connection.output().is_empty();
            let now = Instant::now();
            if now >= end {
                return Err(CallFailure::Lost(ErrorKind::Timeout));
            }
            let left = deadline.saturating_duration_since(now);
            match self.stream.read(self.connection.room(), left, is_sent)? {
                None => (),
                Some(0) => return Err(CallFailure::Lost(ErrorKind::Closed)),
                Some(len) => {
                    self.connection.received(len);
                    progress.received += len;
                }
            }
        }
    }
}
