//! What it means for a call that its connection fails, or that its answer is not what was asked for.

use crate::core::operation::Failure;
use crate::error::{Error, ErrorKind};
use std::io;
use std::sync::Arc;

/// How many bytes a call has sent and received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) sent: usize,
    pub(crate) received: usize,
}

/// Why a call has no output.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server's answer is not what was asked for.
    Answered(Failure),
    /// There is no answer, and will be none.
    Lost(ErrorKind),
}

impl Trouble {
    pub(crate) fn io(error: io::Error) -> Self {
        Self::Lost(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Io(Arc::new(error)),
        })
    }
}

/// Why a call over a connection failed.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) error: Error,
    /// Whether the connection may be used for other calls, if nothing is left of this one.
    pub(crate) is_usable: bool,
    /// Whether the connection had ended before the request came: the call can be repeated on another one.
    pub(crate) was_stale: bool,
}

impl Broken {
    /// `reads` is whether the call changes nothing.
    pub(crate) fn new(trouble: Trouble, progress: Progress, reads: bool) -> Self {
        match trouble {
            Trouble::Answered(failure) => Self {
                error: Error::new(failure.kind, !failure.is_definite && !reads),
                is_usable: !failure.is_fatal,
                was_stale: false,
            },
            Trouble::Lost(kind) => {
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
