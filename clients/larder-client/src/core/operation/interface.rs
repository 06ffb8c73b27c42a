//! What each operation has: its requests, and the output that its replies amount to.

use crate::core::connection::{Answers, Check, Connection, hash, is_fatal, shown};
use crate::core::key::Key;
use crate::error::ErrorKind;
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::answer::{Answer, Refused};
use std::io;
use std::sync::Arc;

/// A request to one server, and the state of reading its replies.
pub(crate) trait Operation {
    /// What the caller gets.
    type Output;
    /// Whether it changes nothing, so that it may be repeated.
    fn reads(&self) -> bool;

    /// The output if nothing is known, for a look-up.
    fn nothing(&self) -> Option<Self::Output> {
        None
    }

    /// What it is timed as.
    fn command(&self) -> Command {
        Command::Other
    }

    /// Begins its requests.
    fn begin(&mut self, connection: &mut Connection);

    /// Whether an answer is one that its commands can have, errors apart.
    fn fits(answer: &Answer<'_>) -> bool;

    /// Takes the next reply; returns the output with the last one.
    ///
    /// # Errors
    /// [`Failure`].
    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, Failure>;
}

/// A reply that has not what was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    /// Whether nothing more has to be expected of the connection.
    pub(crate) is_fatal: bool,
    /// Whether it says that nothing was changed.
    pub(crate) is_definite: bool,
}

impl Failure {
    /// Nobody knows what such a reply says, or which one comes next.
    pub(crate) fn unexpected(shown: impl Into<Box<str>>) -> Self {
        Self { kind: ErrorKind::Unexpected(shown.into()), is_fatal: true, is_definite: false }
    }

    /// What an answer says that is none of those that the request can have.
    pub(crate) fn of(answer: Option<&Answer<'_>>, reply: &[u8]) -> Self {
        let is_fatal = answer.is_none_or(is_fatal);
        match answer {
            // An unknown command.
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
                // Others don't say that nothing was stored: a proxy's, as that a server behind it has not answered in
                // time, or that one of the groups that a flush goes to has no leader.
                let is_definite = matches!(
                    Refused::of(line),
                    Refused::TooLarge | Refused::OutOfMemory | Refused::NoRoom
                );
                let kind = ErrorKind::Server(shown(line).into());
                Self { kind, is_fatal, is_definite }
            }
            _ => Self::unexpected(shown(reply)),
        }
    }
}

/// What a server says to those for whom it has no connection, before it closes theirs.
const TOO_MANY: &[u8] = b"ERROR Too many open connections";

/// The output of a reply that has one answer.
pub(crate) fn one<T>(
    reply: &Bytes,
    known: impl FnOnce(&Answer<'_>) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let answer = Answers(reply).next();
    let output = answer.as_ref().and_then(known);
    output.map(Some).ok_or_else(|| Failure::of(answer.as_ref(), reply))
}

/// What replies to an operation on these keys may be.
pub(crate) fn check<O: Operation>(keys: &[Key<'_>]) -> Check {
    Check::new(keys.iter().map(|key| hash(key.bytes())), O::fits)
}
