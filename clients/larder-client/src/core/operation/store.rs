//! Stores of items.

use super::interface::{Operation, ReplyFailure, check, one};
use crate::core::connection::{Connection, Frame};
use crate::core::key::Key;
use crate::error::{Error, ErrorKind};
use crate::item::StoreOutcome;
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::answer::Answer;
use larder_protocol::encode::{NewItem, classic, meta};
use larder_protocol::{StoreMode, VALUE_LEN_MAX};

/// A store of one item.
#[derive(Clone)]
pub(crate) struct Store<'k, 'v> {
    pub(crate) key: Key<'k>,
    pub(crate) mode: StoreMode,
    pub(crate) item: NewItem<'v>,
    /// The CAS that the current item must have. With `None`, the server does not check the CAS. A
    /// CAS requires the mode `Set`.
    pub(crate) compare: Option<u64>,
}

impl<'k, 'v> Store<'k, 'v> {
    /// Creates a store.
    ///
    /// # Errors
    /// The key is invalid, or the value is too long.
    pub(crate) fn new(
        mode: StoreMode,
        key: &'k [u8],
        item: NewItem<'v>,
        compare: Option<u64>,
    ) -> Result<Self, Error> {
        let key = Key::new(key)?;
        if item.value.len() > VALUE_LEN_MAX {
            return Err(Error::definite(ErrorKind::ValueTooLong(item.value.len())));
        }
        Ok(Self { key, mode, item, compare })
    }

    pub(crate) fn known(answer: &Answer<'_>) -> Option<StoreOutcome> {
        match answer {
            Answer::Stored { .. } | Answer::Done { .. } => Some(StoreOutcome::Stored),
            Answer::NotStored { .. } => Some(StoreOutcome::NotStored),
            Answer::Exists { .. } => Some(StoreOutcome::Exists),
            Answer::NotFound { .. } => Some(StoreOutcome::NotFound),
            _ => None,
        }
    }
}

impl Operation for Store<'_, '_> {
    type Output = StoreOutcome;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Store
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn encode(&mut self, connection: &mut Connection) {
        let Self { mode, item, compare, .. } = *self;
        connection.push_request(
            Frame::One,
            || check::<Self>(&[]),
            |out| match (self.key, compare) {
                (Key::Plain(key), None) => classic::store(mode, key, &item, false, out),
                (Key::Plain(key), Some(cas)) => classic::cas(key, &item, cas, false, out),
                (Key::Base64(key), _) => {
                    let NewItem { value, client_flags, expiry } = item;
                    let options = meta::SetOptions {
                        mode,
                        client_flags,
                        expiry,
                        compare,
                        ..Default::default()
                    };
                    meta::set(key, value, meta::SetFlags::NONE, &options, out);
                }
            },
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<StoreOutcome>, ReplyFailure> {
        one(reply, Self::known)
    }
}
