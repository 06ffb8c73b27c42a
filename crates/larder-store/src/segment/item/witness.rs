//! Proofs that published bytes do not change while a thread reads them.

use crate::segment::index::buckets::{Buckets, LockedStripe};
use crate::segment::memory::epoch::Pinned;
use crate::segment::memory::read_buffers::Buffer;
use crate::segment::memory::table::Table;
use std::marker::PhantomData;

/// Proof that published bytes do not change for `'p`; see `memory::raw`, rule 3.
#[derive(Clone, Copy)]
pub(crate) struct Witness<'p>(PhantomData<&'p ()>);

impl<'p> Witness<'p> {
    /// Derives a proof from an epoch pin: memory that a reader could find under the pin is not
    /// recycled before the pin ends.
    pub(crate) fn pinned(_: Pinned<'p>) -> Self {
        Self(PhantomData)
    }

    /// Derives a proof from the stripe lock, for items whose keys belong to that stripe: while it
    /// is locked, their index words do not change.
    pub(crate) fn locked<B: Buckets>(_: &'p LockedStripe<'_, B>) -> Self {
        Self(PhantomData)
    }

    /// Derives a proof from exclusive use of the region, after a restart.
    pub(crate) fn alone(_: &'p Table) -> Self {
        Self(PhantomData)
    }

    /// Derives a proof from a finished read: the device no longer writes to the buffer, which
    /// belongs to the read.
    pub(crate) fn buffered(_: &'p Buffer) -> Self {
        Self(PhantomData)
    }

    /// Derives a proof from ownership of the sealed segment. Only the owner retires the segment,
    /// and no dead record in it is replaced while it is owned. Does not cover records that are
    /// marked dead.
    pub(crate) fn owner(_: &'p OwnedSegment) -> Self {
        Self(PhantomData)
    }
}

/// A sealed segment or write buffer that belongs to one handle. The handle empties and retires it,
/// or puts it back in its queue.
#[derive(Debug)]
pub(crate) struct OwnedSegment(pub(crate) u32);
