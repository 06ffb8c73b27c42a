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
    /// The server's reply is no result of the operation.
    Reply(ReplyFailure),
    /// There is no reply and will be none.
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

/// The failure of a call over a connection.
#[derive(Debug)]
pub(crate) struct FailedCall {
    pub(crate) error: Error,
    /// Whether the connection stays usable once it is settled.
    pub(crate) is_usable: bool,
    /// Whether the connection was already closed when the request was sent. The call can be repeated on another
    /// connection.
    pub(crate) was_stale: bool,
}

impl FailedCall {
    /// `reads`: whether the call changes nothing.
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
