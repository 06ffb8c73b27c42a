//! Changes of an item: delete, touch, increment and decrement.

use super::interface::{Operation, ReplyFailure, check, one};
use crate::core::connection::{Connection, Frame};
use crate::core::key::Key;
use crate::item::CountOutcome;
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::Exptime;
use larder_protocol::answer::{Answer, AnswerFields, RefusalReason};
use larder_protocol::encode::{classic, meta};

/// A delete. The output is true if an item was deleted or marked as stale.
#[derive(Clone)]
pub(crate) struct Delete<'k> {
    pub(crate) key: Key<'k>,
    /// The CAS that the item must have. With `None`, the server changes the item unconditionally.
    pub(crate) compare: Option<u64>,
    /// The new expiry with which the server marks the item as stale. With `None`, the server
    /// deletes the item.
    pub(crate) stale: Option<Exptime>,
}

impl Delete<'_> {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<bool> {
        match answer {
            Answer::Deleted | Answer::Done { .. } => Some(true),
            Answer::NotFound { .. } | Answer::Exists { .. } => Some(false),
            _ => None,
        }
    }
}

impl Operation for Delete<'_> {
    type Output = bool;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Delete
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn encode(&mut self, connection: &mut Connection) {
        let Self { compare, stale, .. } = *self;
        connection.push_request(
            Frame::One,
            || check::<Self>(&[]),
            |out| match self.key {
                Key::Plain(key) if compare.is_none() && stale.is_none() => {
                    classic::delete(key, false, out)
                }
                key => {
                    let none = meta::DeleteFlags::NONE;
                    let flags = if stale.is_some() { none.invalidate() } else { none };
                    let options =
                        meta::DeleteOptions { compare, touch: stale, ..Default::default() };
                    meta::delete(key.meta(), flags, &options, out);
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, ReplyFailure> {
        one(reply, Self::known)
    }
}

/// A change of an item's expiry. The output is true if the item exists.
pub(crate) struct Touch<'k> {
    pub(crate) key: Key<'k>,
    pub(crate) expiry: Exptime,
}

impl Touch<'_> {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<bool> {
        match answer {
            Answer::Touched | Answer::Done { .. } => Some(true),
            Answer::NotFound { .. } => Some(false),
            _ => None,
        }
    }
}

impl Operation for Touch<'_> {
    type Output = bool;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Touch
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn encode(&mut self, connection: &mut Connection) {
        connection.push_request(
            Frame::One,
            || check::<Self>(&[]),
            |out| match self.key {
                Key::Plain(key) => classic::touch(key, self.expiry, false, out),
                Key::Base64(key) => {
                    let options =
                        meta::GetOptions { touch: Some(self.expiry), ..Default::default() };
                    meta::get(key, meta::GetFlags::NONE, &options, out);
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, ReplyFailure> {
        one(reply, Self::known)
    }
}

/// An increment or decrement.
pub(crate) struct Count<'k> {
    pub(crate) key: Key<'k>,
    pub(crate) down: bool,
    pub(crate) delta: u64,
    /// The number and the expiry with which the server creates a missing item. With `None`, the
    /// server creates no item.
    pub(crate) create: Option<(u64, Exptime)>,
}

impl Count<'_> {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<CountOutcome> {
        match answer {
            Answer::Number(number) => Some(CountOutcome::Number(*number)),
            Answer::Hit { value, returned: AnswerFields::Meta(_) } => {
                let digits = std::str::from_utf8(value).ok()?;
                digits.parse().ok().map(CountOutcome::Number)
            }
            Answer::NotFound { .. } => Some(CountOutcome::NotFound),
            Answer::Error { client: true, line }
                if RefusalReason::of(line) == RefusalReason::NotANumber =>
            {
                Some(CountOutcome::NotANumber)
            }
            _ => None,
        }
    }
}

impl Operation for Count<'_> {
    type Output = CountOutcome;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Count
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn encode(&mut self, connection: &mut Connection) {
        let Self { down, delta, create, .. } = *self;
        connection.push_request(
            Frame::One,
            || check::<Self>(&[]),
            |out| match (self.key, create) {
                (Key::Plain(key), None) if down => classic::decr(key, delta, false, out),
                (Key::Plain(key), None) => classic::incr(key, delta, false, out),
                (key, _) => {
                    let (initial, vivify) =
                        create.map_or((0, None), |(initial, at)| (initial, Some(at)));
                    let options = meta::ArithmeticOptions {
                        down,
                        delta,
                        vivify,
                        initial,
                        ..Default::default()
                    };
                    meta::arithmetic(
                        key.meta(),
                        meta::ArithmeticFlags::NONE.value(),
                        &options,
                        out,
                    );
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<CountOutcome>, ReplyFailure> {
        one(reply, Self::known)
    }
}
