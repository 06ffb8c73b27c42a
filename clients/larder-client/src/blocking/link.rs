//! A connection with its socket. The calling thread does all of its I/O.

use super::stream::Stream;
use crate::core::connection::shown;
use crate::core::link;
use crate::core::operation::{Failure, Operation};
use crate::core::outcome::{Broken, Progress, Trouble};
use crate::error::ErrorKind;
use bytes::Bytes;
use nix::poll::PollFlags;
use std::time::{Duration, Instant};

/// How long what has come by the deadline may be read. A server that never stops to send is given up then.
pub(super) const LATE_MAX: Duration = Duration::from_millis(10);

/// A connection with its socket.
pub(crate) type Link = link::Link<Stream>;

impl Link {
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
