//! Reasons why published bytes do not change while they are read.

use crate::segment::index::buckets::{Buckets, Locked};
use crate::segment::memory::epoch::Pinned;
use crate::segment::memory::read_buffers::Buffer;
use crate::segment::memory::table::Table;
use std::marker::PhantomData;

/// Proof that published bytes do not change for `'p`; see `memory::raw`, rule 3.
#[derive(Clone, Copy)]
pub(crate) struct Witness<'p>(PhantomData<&'p ()>);

impl<'p> Witness<'p> {
    /// By an epoch pin: memory that could be found under it is not recycled before it ends.
    pub(crate) fn pinned(_: Pinned<'p>) -> Self {
        Self(PhantomData)
    }

    /// By the stripe lock, for the keys of that stripe, whose index words do not change.
    pub(crate) fn locked<B: Buckets>(_: &'p Locked<'_, B>) -> Self {
        Self(PhantomData)
    }

    /// By nobody else using the region, after a restart.
    pub(crate) fn alone(_: &'p Table) -> Self {
        Self(PhantomData)
    }

    /// By the read that owns the buffer, and that has ended.
    pub(crate) fn buffered(_: &'p Buffer) -> Self {
        Self(PhantomData)
    }

    /// By owning the sealed segment, which only its owner retires, and in which no dead record is replaced
    /// meanwhile. Records that are marked dead are not covered.
    pub(crate) fn owner(_: &'p OwnedSegment) -> Self {
        Self(PhantomData)
    }
}

/// A sealed segment that was taken out of its queue. Its owner empties and retires it, or puts it back.
#[derive(Debug)]
pub(crate) struct OwnedSegment(pub(crate) u32);
