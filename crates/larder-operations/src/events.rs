//! Events for observers. An operation on a key reports the result of its lookup once, after the
//! operation has taken effect. A second event reports the outcome of a store, the removal of a live
//! item, or the item that a lookup, [`OpContext::count`](crate::OpContext::count) or
//! [`OpContext::add`](crate::OpContext::add) has created. Other changes, such as a new number or a
//! new expiry, cause no event. A refused operation reports only the refusal, or nothing.
//! [`OpContext::set`](crate::OpContext::set) reports nothing.

use crate::{Limits, StoreKind, StoreOutcome};
use larder_store::{Expiry, Item, Lease, Lookup, Now};

/// Receives operations' events, on the thread that executes the operations.
pub trait Observer {
    /// Handles one event. The implementation must be quick, because the request waits for the call.
    fn notify(&self, event: &Event<'_>);
}

/// The result of an operation's lookup, before any change by the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// A live item.
    Live {
        /// The size class of the item, counted from 0.
        class: usize,
        /// The length of the value in bytes.
        value_len: usize,
    },
    /// No item.
    Nothing,
    /// An item that had expired.
    Expired,
    /// An item that had been flushed.
    Flushed,
}

impl LookupResult {
    /// Converts the engine's lookup result for a key of `key_len` bytes.
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

    /// Returns the size class of a live item, counted from 0, or `None` for other results.
    #[inline]
    #[must_use]
    pub fn class(self) -> Option<usize> {
        if let Self::Live { class, .. } = self { Some(class) } else { None }
    }
}

impl<R> From<&Lookup<R>> for LookupResult {
    /// Converts a lookup result that is not a hit.
    fn from(missing: &Lookup<R>) -> Self {
        match missing {
            Lookup::Expired => Self::Expired,
            Lookup::Flushed => Self::Flushed,
            Lookup::Hit(_) | Lookup::Miss | Lookup::Pending => Self::Nothing,
        }
    }
}

/// A lookup or change of an item by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'e> {
    /// An operation looked the item up, to read or change it.
    Fetched {
        /// The key of the item.
        key: &'e [u8],
        /// The result of the lookup.
        found: LookupResult,
        /// Whether the operation reads the item for its client. False if the operation only changes
        /// or describes the item.
        is_read: bool,
    },
    /// The item was stored, or the store failed.
    Stored {
        /// The key of the item.
        key: &'e [u8],
        /// The outcome of the store.
        outcome: StoreOutcome,
        /// The command that stored the item.
        kind: StoreKind,
        /// Seconds until the expiry that the operation sets. `None` if the item never expires, and
        /// if a [`Swap`](crate::Swap) keeps the expiry of the old item.
        ttl: Option<u32>,
        /// The size class of the item, counted from 0.
        class: usize,
        /// The length of the value in bytes.
        value_len: usize,
    },
    /// The item was removed.
    Removed {
        /// The key of the item.
        key: &'e [u8],
        /// The size class of the item, counted from 0.
        class: usize,
        /// The length of the value in bytes.
        value_len: usize,
    },
}

impl<'e> Event<'e> {
    /// Returns the event about the lookup of an operation that changes the item.
    pub(crate) fn fetched_for_change(key: &'e [u8], found: LookupResult) -> Self {
        Self::Fetched { key, found, is_read: false }
    }

    /// Returns the event about an item that a lookup, an increment, a decrement or an addition has
    /// created.
    pub(crate) fn created(
        key: &'e [u8],
        cas: u64,
        expiry: Expiry,
        value_len: usize,
        now: Now,
        limits: &Limits,
    ) -> Self {
        Self::Stored {
            key,
            outcome: StoreOutcome::Stored { cas, len: value_len },
            kind: StoreKind::Add,
            ttl: expiry.left(now),
            class: limits.class_of(key.len(), value_len, 0),
            value_len,
        }
    }
}
