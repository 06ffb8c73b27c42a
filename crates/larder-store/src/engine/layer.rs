//! Engines that wrap another engine.
//!
//! A wrapper implements [`Layer`], [`super::Batches`], [`super::Updates`], and the other traits of
//! [`super::Engine`] that it changes. For each remaining trait it implements the marker trait of
//! this module, which passes all calls to the inner engine.

use super::{
    Access, AckState, Acknowledge, Content, Delivery, Engine, ExcessMemory, Gauges, HashedKey,
    Item, Lookup, Lookups, Maintenance, ReadRequest, ReadStart, Refusal, Seconds, SlowStorage,
    Uploads, WalkPosition, WalkState, Walks,
};
use std::task::Waker;

/// An engine that wraps another engine.
pub trait Layer {
    /// The type of the inner engine.
    type Inner: Engine;
    /// Borrows the inner engine.
    fn inner(&self) -> &Self::Inner;
    /// Borrows the inner engine mutably.
    fn inner_mut(&mut self) -> &mut Self::Inner;
}

/// Implements [`Lookups`]: passes all calls to the inner engine.
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

/// Implements [`Uploads`]: passes all calls to the inner engine.
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

    fn memory_of(&self, upload: &Self::Upload) -> usize {
        self.inner().memory_of(upload)
    }

    fn uploaded<'u>(&self, upload: &'u Self::Upload, offset: usize) -> &'u [u8] {
        self.inner().uploaded(upload, offset)
    }

    fn excess_memory(&self) -> ExcessMemory {
        self.inner().excess_memory()
    }
}

/// Implements [`SlowStorage`]: passes all calls to the inner engine.
pub trait DelegateSlowStorage: Layer {}

impl<T: DelegateSlowStorage> SlowStorage for T {
    type PendingRead = <T::Inner as SlowStorage>::PendingRead;

    fn start_read(
        &mut self,
        wanted: ReadRequest,
        waker: &Waker,
        into: &mut Vec<Self::PendingRead>,
    ) -> ReadStart {
        self.inner_mut().start_read(wanted, waker, into)
    }

    fn deliver(&mut self, read: &Self::PendingRead) -> Delivery {
        self.inner_mut().deliver(read)
    }

    fn submit(&mut self) {
        self.inner_mut().submit();
    }

    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<std::os::fd::RawFd> {
        self.inner_mut().reads_fd()
    }

    fn drive_reads(&mut self) {
        self.inner_mut().drive_reads();
    }
}

/// Implements [`Acknowledge`]: passes all calls to the inner engine.
pub trait DelegateAcknowledge: Layer {}

impl<T: DelegateAcknowledge> Acknowledge for T {
    type Position = <T::Inner as Acknowledge>::Position;

    fn ack_position(&mut self) -> Option<Self::Position> {
        self.inner_mut().ack_position()
    }

    fn ack_state(&mut self, position: &Self::Position, waker: &Waker) -> AckState {
        self.inner_mut().ack_state(position, waker)
    }
}

/// Implements [`Walks`]: passes all calls to the inner engine.
pub trait DelegateWalks: Layer {}

impl<T: DelegateWalks + Lookups<Lease = <T::Inner as Lookups>::Lease>> Walks for T {
    type Walk = <T::Inner as Walks>::Walk;

    fn walk(&self) -> Self::Walk {
        self.inner().walk()
    }

    fn walk_from(&self, position: u64) -> Self::Walk {
        self.inner().walk_from(position)
    }

    fn walk_position(&self, walk: &Self::Walk) -> WalkPosition {
        self.inner().walk_position(walk)
    }

    fn continue_walk(
        &mut self,
        walk: &mut Self::Walk,
        items: usize,
        waker: &Waker,
        visit: impl FnMut(&[u8], &Item<'_, Self::Lease>),
    ) -> WalkState {
        self.inner_mut().continue_walk(walk, items, waker, visit)
    }
}

/// Implements [`Maintenance`]: passes all calls to the inner engine.
pub trait DelegateMaintenance: Layer {}

impl<T: DelegateMaintenance> Maintenance for T {
    fn maintain(&mut self, now: Seconds) -> bool {
        self.inner_mut().maintain(now)
    }

    fn shrink(&mut self, now: Seconds) -> bool {
        self.inner_mut().shrink(now)
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
