//! Engines around other engines.
//!
//! A wrapper implements [`Layer`], the traits of [`super::Engine`] that it changes, and for each of the others the marker
//! trait of this module, which passes its functions to the inner engine.

use super::{
    Access, Acknowledge, Acknowledged, Begun, Content, Delivery, Engine, Gauges, HashedKey, Item,
    Lookup, Lookups, Maintenance, Overheld, Refusal, Seconds, SlowStorage, Uploads, WalkPlace,
    WalkState, Walks, Wanted,
};
use std::task::Waker;

/// An engine around another one.
pub trait Layer {
    /// The type of the inner engine.
    type Inner: Engine;
    /// The inner engine.
    fn inner(&self) -> &Self::Inner;
    /// The inner engine.
    fn inner_mut(&mut self) -> &mut Self::Inner;
}

/// Passes [`Lookups`] to the inner engine.
pub trait DelegateLookups: Layer {}

impl<T: DelegateLookups> Lookups for T {
    type Lease = <T::Inner as Lookups>::Lease;

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.inner().hash(key)
    }

    #[inline]
    fn announce(&mut self, hash: u64) {
        self.inner_mut().announce(hash);
    }

    #[inline]
    fn prefetch_announced(&mut self) {
        self.inner_mut().prefetch_announced();
    }

    #[inline]
    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        self.inner_mut().get(key, access, read)
    }

    #[inline]
    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> (Access, R),
    ) -> Lookup<R> {
        self.inner_mut().get_recorded(key, read)
    }

    #[inline]
    fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Content<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        self.inner_mut().content(key, read)
    }
}

/// Passes [`Uploads`] to the inner engine.
pub trait DelegateUploads: Layer {}

impl<T: DelegateUploads> Uploads for T {
    type Upload = <T::Inner as Uploads>::Upload;

    fn upload_len_min(&self) -> usize {
        self.inner().upload_len_min()
    }

    fn upload(&mut self, len: usize) -> Result<Self::Upload, Refusal> {
        self.inner_mut().upload(len)
    }

    fn extend(&mut self, upload: &mut Self::Upload, bytes: &[u8]) -> Result<(), Refusal> {
        self.inner_mut().extend(upload, bytes)
    }

    fn overheld(&self) -> Overheld {
        self.inner().overheld()
    }
}

/// Passes [`SlowStorage`] to the inner engine.
pub trait DelegateSlowStorage: Layer {}

impl<T: DelegateSlowStorage> SlowStorage for T {
    type Fetch = <T::Inner as SlowStorage>::Fetch;

    fn fetch(&mut self, wanted: Wanted, waker: &Waker, into: &mut Vec<Self::Fetch>) -> Begun {
        self.inner_mut().fetch(wanted, waker, into)
    }

    fn deliver(&mut self, fetch: &Self::Fetch) -> Delivery {
        self.inner_mut().deliver(fetch)
    }

    fn submit(&mut self) {
        self.inner_mut().submit();
    }

    #[cfg(unix)]
    fn poll_reads(&mut self) -> Option<std::os::fd::RawFd> {
        self.inner_mut().poll_reads()
    }

    fn turn_reads(&mut self) {
        self.inner_mut().turn_reads();
    }
}

/// Passes [`Acknowledge`] to the inner engine.
pub trait DelegateAcknowledge: Layer {}

impl<T: DelegateAcknowledge> Acknowledge for T {
    type Position = <T::Inner as Acknowledge>::Position;

    fn ack_position(&mut self) -> Option<Self::Position> {
        self.inner_mut().ack_position()
    }

    fn is_acknowledged(&mut self, position: &Self::Position, waker: &Waker) -> Acknowledged {
        self.inner_mut().is_acknowledged(position, waker)
    }
}

/// Passes [`Walks`] to the inner engine.
pub trait DelegateWalks: Layer {}

impl<T: DelegateWalks + Lookups<Lease = <T::Inner as Lookups>::Lease>> Walks for T {
    type Walk = <T::Inner as Walks>::Walk;

    fn walk(&self) -> Self::Walk {
        self.inner().walk()
    }

    fn walk_from(&self, place: u64) -> Self::Walk {
        self.inner().walk_from(place)
    }

    fn walk_place(&self, walk: &Self::Walk) -> WalkPlace {
        self.inner().walk_place(walk)
    }

    fn walk_on(
        &mut self,
        walk: &mut Self::Walk,
        items: usize,
        waker: &Waker,
        visit: impl FnMut(&[u8], &Item<'_, Self::Lease>),
    ) -> WalkState {
        self.inner_mut().walk_on(walk, items, waker, visit)
    }
}

/// Passes [`Maintenance`] to the inner engine.
pub trait DelegateMaintenance: Layer {}

impl<T: DelegateMaintenance> Maintenance for T {
    fn maintain(&mut self, now: Seconds) -> bool {
        self.inner_mut().maintain(now)
    }

    fn shrink(&mut self) -> bool {
        self.inner_mut().shrink()
    }

    fn crawl_soon(&mut self) {
        self.inner_mut().crawl_soon();
    }

    fn gauges(&self) -> Gauges {
        self.inner().gauges()
    }

    fn reset_counters(&self) {
        self.inner().reset_counters();
    }
}
