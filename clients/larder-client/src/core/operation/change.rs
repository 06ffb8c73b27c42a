//! Changes of an item: removal, expiry, counting.

use super::interface::{Failure, Operation, check, one};
use crate::core::connection::{Connection, Frame};
use crate::core::key::Key;
use crate::item::Counted;
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::Exptime;
use larder_protocol::answer::{Answer, Refused, Returned};
use larder_protocol::encode::{classic, meta};

/// A removal; whether there was an item.
#[derive(Clone)]
pub(crate) struct Delete<'k> {
    pub(crate) key: Key<'k>,
    /// Removes the item only if it has this CAS.
    pub(crate) compare: Option<u64>,
    /// Marks the item as stale for so long, instead of removing it.
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

    fn begin(&mut self, connection: &mut Connection) {
        let Self { compare, stale, .. } = *self;
        connection.begin(
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

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, Failure> {
        one(reply, Self::known)
    }
}

/// A change of an item's expiry; whether there is an item.
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

    fn begin(&mut self, connection: &mut Connection) {
        connection.begin(
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

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, Failure> {
        one(reply, Self::known)
    }
}

/// Counting.
pub(crate) struct Count<'k> {
    pub(crate) key: Key<'k>,
    pub(crate) down: bool,
    pub(crate) delta: u64,
    /// The number and the expiry of an item that is created if there is none.
    pub(crate) create: Option<(u64, Exptime)>,
}

impl Count<'_> {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<Counted> {
        match answer {
            Answer::Number(number) => Some(Counted::Number(*number)),
            Answer::Hit { value, returned: Returned::Meta(_) } => {
                let digits = std::str::from_utf8(value).ok()?;
                digits.parse().ok().map(Counted::Number)
            }
            Answer::NotFound { .. } => Some(Counted::NotFound),
            Answer::Error { client: true, line } if Refused::of(line) == Refused::NotANumber => {
                Some(Counted::NotANumber)
            }
            _ => None,
        }
    }
}

impl Operation for Count<'_> {
    type Output = Counted;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Count
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        let Self { down, delta, create, .. } = *self;
        connection.begin(
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

    fn take(&mut self, reply: &Bytes) -> Result<Option<Counted>, Failure> {
        one(reply, Self::known)
    }
}
