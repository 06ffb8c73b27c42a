//! Failures of calls, and whether a retry is safe.

use crate::core::operation::ReplyFailure;
use crate::error::{Error, ErrorKind};
use std::io;
use std::sync::Arc;

/// The number of bytes that a call has sent and received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) sent: usize,
    pub(crate) received: usize,
}

/// The cause of a failed call.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// The server replied with an error, or with a reply that does not match the request.
    Reply(ReplyFailure),
    /// The call gets no reply, because the connection was lost or the caller stopped waiting.
    Lost(ErrorKind),
}

impl CallFailure {
    pub(crate) fn io(error: io::Error) -> Self {
        Self::Lost(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Io(Arc::new(error)),
        })
    }
}

/// The failure of a call on a connection.
#[derive(Debug)]
pub(crate) struct FailedCall {
    pub(crate) error: Error,
    /// Whether later calls may use the connection once all pending replies have arrived.
    pub(crate) is_usable: bool,
    /// Whether the client may repeat the call on another connection. The client may repeat the call
    /// if the connection was lost before any reply arrived, and if the call changes nothing or no
    /// byte of the call was sent. The usual cause is that the server had closed the idle
    /// connection.
    pub(crate) was_stale: bool,
}

impl FailedCall {
    /// Creates the failure of a call. `reads` is true if the call changes nothing; its error is
    /// then never ambiguous.
    pub(crate) fn new(failure: CallFailure, progress: Progress, reads: bool) -> Self {
        match failure {
            CallFailure::Reply(failure) => Self {
                error: Error::new(failure.kind, !failure.is_definite && !reads),
                is_usable: !failure.is_fatal,
                was_stale: false,
            },
            CallFailure::Lost(kind) => {
                let is_lost = matches!(kind, ErrorKind::Closed | ErrorKind::Io(_));
                let is_unread = progress.received == 0;
                Self {
                    error: Error::new(kind, progress.sent > 0 && !reads),
                    is_usable: false,
                    was_stale: is_lost && is_unread && (reads || progress.sent == 0),
                }
            }
        }
    }
}
