//! What observers are told of operations: each operation reports once what it found and what it
//! did, after it took effect.

use crate::{Limits, StoreKind, Stored};
use larder_store::{Expiry, Item, Lease, Lookup, Seconds};

/// Is told of what operations do, on the thread that does it.
pub trait Observer {
    /// Takes one event. It must be quick: requests wait for it.
    fn notify(&self, event: &Event<'_>);
}

/// What a key led to before an operation changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A live item.
    Live {
        /// Its size class, from 0.
        class: usize,
        /// Bytes of its value.
        value_len: usize,
    },
    /// Nothing.
    Nothing,
    /// An item whose time had come.
    Expired,
    /// An item from before a flush.
    Flushed,
}

impl Found {
    /// What a look-up of a key of `key_len` bytes has found.
    #[inline]
    pub(crate) fn of<L: Lease>(
        found: &Lookup<&Item<'_, L>>,
        key_len: usize,
        limits: &Limits,
    ) -> Self {
        match found {
            Lookup::Hit(item) => {
                let value_len = item.value.len();
                let class = limits.class_of(key_len, value_len, item.attributes.client_flags);
                Self::Live { class, value_len }
            }
            Lookup::Expired => Self::Expired,
            Lookup::Flushed => Self::Flushed,
            Lookup::Miss | Lookup::Pending => Self::Nothing,
        }
    }

    /// The size class of a live item, from 0.
    #[inline]
    #[must_use]
    pub fn class(self) -> Option<usize> {
        if let Self::Live { class, .. } = self { Some(class) } else { None }
    }
}

impl<R> From<&Lookup<R>> for Found {
    /// Why a look-up has found nothing.
    fn from(gone: &Lookup<R>) -> Self {
        match gone {
            Lookup::Expired => Self::Expired,
            Lookup::Flushed => Self::Flushed,
            Lookup::Hit(_) | Lookup::Miss | Lookup::Pending => Self::Nothing,
        }
    }
}

/// Something that happened to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'e> {
    /// It was looked for, to be read or changed.
    Fetched {
        /// Its key.
        key: &'e [u8],
        /// What was there.
        found: Found,
    },
    /// It was stored, or was to be.
    Stored {
        /// Its key.
        key: &'e [u8],
        /// What became of it.
        outcome: Stored,
        /// How.
        kind: StoreKind,
        /// Seconds left; `None` is for ever.
        ttl: Option<u32>,
        /// Its size class, from 0.
        class: usize,
        /// Bytes of its value.
        value_len: usize,
    },
    /// It was removed.
    Removed {
        /// Its key.
        key: &'e [u8],
        /// Its size class, from 0.
        class: usize,
        /// Bytes of its value.
        value_len: usize,
    },
}

impl<'e> Event<'e> {
    /// An item that a look-up or a count has made.
    pub(crate) fn created(
        key: &'e [u8],
        cas: u64,
        expiry: Expiry,
        value_len: usize,
        now: Seconds,
        limits: &Limits,
    ) -> Self {
        Self::Stored {
            key,
            outcome: Stored::Stored { cas, len: value_len },
            kind: StoreKind::Add,
            ttl: expiry.left(now),
            class: limits.class_of(key.len(), value_len, 0),
            value_len,
        }
    }
}
