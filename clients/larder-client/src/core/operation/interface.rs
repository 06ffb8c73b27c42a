//! The trait that all operations implement: requests, and the interpretation of replies.

use crate::core::connection::{Answers, Connection, ReplyCheck, hash, is_fatal, shown};
use crate::core::key::Key;
use crate::error::ErrorKind;
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::answer::{Answer, RefusalReason};
use std::io;
use std::sync::Arc;

/// A request to one server, and the state of interpreting its replies.
pub(crate) trait Operation {
    /// The result for the caller.
    type Output;
    /// Returns whether the operation changes no value, so that the client may repeat it.
    fn reads(&self) -> bool;

    /// Returns the output of a lookup that finds nothing. With
    /// [`Builder::degrade`](crate::Builder::degrade), this output replaces the error of a server
    /// fault. Returns `None` for operations that report the fault.
    fn empty_output(&self) -> Option<Self::Output> {
        None
    }

    /// Returns the command under which metrics count the operation.
    fn command(&self) -> Command {
        Command::Other
    }

    /// Adds the requests to a connection.
    fn encode(&mut self, connection: &mut Connection);

    /// Returns whether this [`Answer`] is a valid reply to the operation's commands. The function
    /// may return false for error replies, because the client accepts any error reply that leaves
    /// the connection usable.
    fn fits(answer: &Answer<'_>) -> bool;

    /// Interprets the next reply. Returns the output after the last reply, and `None` after earlier
    /// replies.
    ///
    /// # Errors
    /// The reply is an error or unexpected.
    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, ReplyFailure>;
}

/// The failure of an operation whose reply is an error or unexpected.
#[derive(Clone, Debug)]
pub(crate) struct ReplyFailure {
    pub(crate) kind: ErrorKind,
    /// Whether the connection is unusable.
    pub(crate) is_fatal: bool,
    /// Whether the reply proves that the operation changed nothing.
    pub(crate) is_definite: bool,
}

impl ReplyFailure {
    /// Creates the failure of an unexpected reply. Later replies on the connection cannot be
    /// trusted.
    pub(crate) fn unexpected(text: impl Into<Box<str>>) -> Self {
        Self { kind: ErrorKind::Unexpected(text.into()), is_fatal: true, is_definite: false }
    }

    /// Creates the failure for an [`Answer`] that is not a result of the operation. `None` means
    /// that the reply ended too early.
    pub(crate) fn of(answer: Option<&Answer<'_>>, reply: &[u8]) -> Self {
        let is_fatal = answer.is_none_or(is_fatal);
        match answer {
            // The server does not support the command.
            Some(Answer::Error { line: b"ERROR", .. }) => Self::unexpected(shown(reply)),
            Some(Answer::Error { line, .. }) if line.starts_with(TOO_MANY) => {
                let error = io::Error::new(io::ErrorKind::ConnectionRefused, shown(line));
                let kind = ErrorKind::Connect(Arc::new(error));
                Self { kind, is_fatal, is_definite: true }
            }
            Some(Answer::Error { client: true, line }) => {
                let kind = ErrorKind::Refused(shown(line).into());
                Self { kind, is_fatal, is_definite: true }
            }
            Some(Answer::Error { client: false, line }) => {
                // After any other error, the server may have made the change. Examples are a
                // proxy's error after its backend timed out, and Larder's error about a flush if
                // one of the groups has no leader.
                let is_definite = matches!(
                    RefusalReason::of(line),
                    RefusalReason::TooLarge | RefusalReason::OutOfMemory | RefusalReason::NoRoom
                );
                let kind = ErrorKind::Server(shown(line).into());
                Self { kind, is_fatal, is_definite }
            }
            _ => Self::unexpected(shown(reply)),
        }
    }
}

/// A server that has reached its connection limit sends this reply before it closes the connection.
const TOO_MANY: &[u8] = b"ERROR Too many open connections";

/// Interprets a reply that consists of one [`Answer`]. Never returns `Ok(None)`.
pub(crate) fn one<T>(
    reply: &Bytes,
    interpret: impl FnOnce(&Answer<'_>) -> Option<T>,
) -> Result<Option<T>, ReplyFailure> {
    let answer = Answers(reply).next();
    let output = answer.as_ref().and_then(interpret);
    output.map(Some).ok_or_else(|| ReplyFailure::of(answer.as_ref(), reply))
}

/// Builds the check for the replies to an operation on these keys.
pub(crate) fn check<O: Operation>(keys: &[Key<'_>]) -> ReplyCheck {
    ReplyCheck::new(keys.iter().map(|key| hash(key.bytes())), O::fits)
}
