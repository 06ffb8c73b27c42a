//! Stores.

use super::interface::{Failure, Operation, check, one};
use crate::core::connection::{Connection, Frame};
use crate::core::key::Key;
use crate::error::{Error, ErrorKind};
use crate::item::Stored;
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::answer::Answer;
use larder_protocol::encode::{NewItem, classic, meta};
use larder_protocol::{StoreMode, VALUE_LEN_MAX};

/// A store.
#[derive(Clone)]
pub(crate) struct Store<'k, 'v> {
    pub(crate) key: Key<'k>,
    pub(crate) mode: StoreMode,
    pub(crate) item: NewItem<'v>,
    /// Stores it only if the item has this CAS. The mode is `Set` then.
    pub(crate) compare: Option<u64>,
}

impl<'k, 'v> Store<'k, 'v> {
    /// # Errors
    /// No request can have this key, or the value is too long.
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

    pub(crate) fn known(answer: &Answer<'_>) -> Option<Stored> {
        match answer {
            Answer::Stored { .. } | Answer::Done { .. } => Some(Stored::Stored),
            Answer::NotStored { .. } => Some(Stored::NotStored),
            Answer::Exists { .. } => Some(Stored::Exists),
            Answer::NotFound { .. } => Some(Stored::NotFound),
            _ => None,
        }
    }
}

impl Operation for Store<'_, '_> {
    type Output = Stored;
    fn reads(&self) -> bool {
        false
    }

    fn command(&self) -> Command {
        Command::Store
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn begin(&mut self, connection: &mut Connection) {
        let Self { mode, item, compare, .. } = *self;
        connection.begin(
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

    fn take(&mut self, reply: &Bytes) -> Result<Option<Stored>, Failure> {
        one(reply, Self::known)
    }
}
