//! Batches and lookups.

use super::{Content, HashedKey, Item, Lease, Now};

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The item is live. Contains the closure's result or, in an update, the item.
    Hit(R),
    /// There is no item with that key.
    Miss,
    /// The item has expired.
    Expired,
    /// A flush or a dropped tag has invalidated the item.
    Flushed,
    /// The item is on slower storage, and the engine has not called the closure. Start a read with
    /// [`super::SlowStorage::start_read`], and repeat the lookup when the engine calls the waker.
    /// The closure of [`super::Updates::update`] never receives this value: see
    /// [`super::Refusal::Pending`].
    Pending,
}

impl<R> Lookup<R> {
    /// Returns the same result with `f` applied to the content of a hit.
    pub fn map<S>(self, f: impl FnOnce(R) -> S) -> Lookup<S> {
        match self {
            Self::Hit(hit) => Lookup::Hit(f(hit)),
            Self::Miss => Lookup::Miss,
            Self::Expired => Lookup::Expired,
            Self::Flushed => Lookup::Flushed,
            Self::Pending => Lookup::Pending,
        }
    }
}

/// Whether a stored item is valid, and the reason if it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Live,
    /// The item's expiry is past.
    Expired,
    /// A flush that took effect after the item was stored, or a dropped tag, has invalidated it.
    Flushed,
}

impl Liveness {
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self == Self::Live
    }

    /// Returns the result of a lookup that found an item with this liveness. Calls `hit` only for a
    /// live item.
    #[inline]
    pub(crate) fn lookup<R>(self, hit: impl FnOnce() -> R) -> Lookup<R> {
        match self {
            Self::Live => Lookup::Hit(hit()),
            Self::Expired => Lookup::Expired,
            Self::Flushed => Lookup::Flushed,
        }
    }
}

/// Whether a read is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The read counts for eviction, [`Item::fetched`] and [`Item::accessed`].
    Tracked,
    /// The read is not recorded, except that moka counts it for eviction.
    Untracked,
}

/// Batches: groups of requests that are answered together.
pub trait Batches {
    /// Starts a batch, sets the engine's time to `now`, and applies a delayed flush that is due.
    /// Until [`Batches::end_batch`], reads need no synchronisation of their own.
    fn begin_batch(&mut self, now: impl Into<Now>);

    /// Ends a batch. The batch then no longer prevents the reuse of freed memory. Lookups no longer
    /// find the items that [`super::SlowStorage::deliver`] made visible.
    fn end_batch(&mut self);
}

/// Lookups. In the segment engine, a lookup of an item in memory takes no lock.
pub trait Lookups {
    /// Access to a large value.
    type Lease: Lease + Send;

    /// Hashes a key with the cache's own seed.
    fn hash(&self, key: &[u8]) -> u64;

    /// Prefetches the index bucket of `hash`, if the engine supports it. A caller announces the
    /// hashes of a batch before the first lookup, and looks most of them up in the same order.
    fn announce(&mut self, _hash: u64) {}

    /// Prefetches the announced items, if the engine supports it. The caller calls this function
    /// after announcing all hashes of the batch, when the index buckets have arrived in the
    /// processor's cache.
    fn prefetch_announced(&mut self) {}

    /// Looks `key` up and passes a live item to `read`.
    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> R,
    ) -> Lookup<R>;

    /// Looks `key` up like [`Lookups::get`], but `read` also returns whether the lookup counts as
    /// an access. The lookup of a request that will update the item should not count: the update
    /// records the access, unless the update returns [`super::Refusal::Pending`]. A miss counts as
    /// an access.
    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> (Access, R),
    ) -> Lookup<R>;

    /// Looks `key` up like [`Lookups::get`] with [`Access::Tracked`], for callers that need only
    /// the [`Content`] of an item. The segment engine is faster here because it does not decode the
    /// other attributes.
    #[inline]
    fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Content<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        self.get(key, Access::Tracked, |item| {
            let (client_flags, value) = (item.attributes.client_flags, item.value.clone());
            read(&Content { client_flags, cas: item.cas, value })
        })
    }
}
