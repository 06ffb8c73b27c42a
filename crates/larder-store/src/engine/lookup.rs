//! Batches and lookups.

use super::{Content, HashedKey, Item, Lease, Now};

/// What [`Lookups::get`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The item was there. This is the result of the closure.
    Hit(R),
    /// There is no item with that key.
    Miss,
    /// There was an item, which has expired.
    Expired,
    /// There was an item, which [`Updates::flush`] has invalidated.
    Flushed,
    /// The item is on slower storage and the closure was not called. Begin to read it with
    /// [`SlowStorage::start_read`], and repeat the look-up when the waker was called. The closure of
    /// [`Updates::update`] is never shown this: see [`Refusal::Pending`].
    Pending,
}

impl<R> Lookup<R> {
    /// The same outcome with `f` applied to the content of a hit.
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

/// Whether an item that is stored can be shown, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Live,
    /// Its expiry is past.
    Expired,
    /// [`Updates::flush`] came after it was stored.
    Flushed,
}

impl Liveness {
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self == Self::Live
    }

    /// What a look-up answers that found such an item. `hit` is called for a live one alone.
    #[inline]
    pub(crate) fn lookup<R>(self, hit: impl FnOnce() -> R) -> Lookup<R> {
        match self {
            Self::Live => Lookup::Hit(hit()),
            Self::Expired => Lookup::Expired,
            Self::Flushed => Lookup::Flushed,
        }
    }
}

/// Whether a read leaves traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The read counts for eviction, [`Item::fetched`] and [`Item::accessed`].
    Tracked,
    /// The read leaves no trace.
    Untracked,
}

/// Batches: requests that are answered together.
pub trait Batches {
    /// Begins a batch: until [`Batches::end_batch`], reads need no synchronisation of their own. Sets
    /// the engine's time to `now`.
    fn begin_batch(&mut self, now: impl Into<Now>);

    /// Ends a batch. Memory that was freed during it can be used again.
    fn end_batch(&mut self);
}

/// Lookups. They take no locks.
pub trait Lookups {
    /// Access to a large value.
    type Lease: Lease + Send;

    /// Hashes a key with the cache's own seed.
    fn hash(&self, key: &[u8]) -> u64;

    /// Prefetches what a look-up of `hash` reads first. Hashes are announced in the order of their
    /// look-ups, and before the first of them.
    fn announce(&mut self, _hash: u64) {}

    /// Prefetches the announced items. It is called after all of a batch were announced, when their
    /// index buckets have come from memory.
    fn prefetch_announced(&mut self) {}

    /// Looks `key` up and shows the item to `read`. Takes no lock.
    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> R,
    ) -> Lookup<R>;

    /// [`Lookups::get`] for a look-up that knows only from the item whether it is the access that counts:
    /// `read` returns that, too. A request that goes on to change the item records its access with the
    /// change, so that a change that is `Pending` leaves no trace. A miss counts as an access.
    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> (Access, R),
    ) -> Lookup<R>;

    /// [`Lookups::get_recorded`] for callers that need only an item's content. It is faster because the
    /// other attributes are not decoded.
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
