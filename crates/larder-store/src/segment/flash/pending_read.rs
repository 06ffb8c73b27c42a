//! A read of an item, as those see it that wait for it or use it.

use super::format::Origin;
use crate::Seconds;
use crate::segment::index::slot::Slot;
use crate::segment::memory::read_buffers::Buffer;
use larder_device::Reader;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// The state of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    UnderWay,
    /// It can be used until [`Reading::leave`].
    Whole,
    Failed,
    Aborted,
}

/// A read of an item.
pub(crate) trait Reading: Send + Sync + fmt::Debug {
    /// The index word for which it was begun.
    fn slot(&self) -> Slot;

    /// The hash of the key for which it was begun.
    fn hash(&self) -> u64;

    fn origin(&self) -> Origin;

    /// When it was begun.
    fn begun(&self) -> Seconds;

    /// Whether it takes too long.
    fn is_late(&self, now: Seconds) -> bool;

    /// Whether the value is there: there may have been no memory for a large one.
    fn has_value(&self) -> bool;

    /// The index has an item now with the chain of this one, if it is large.
    fn give_value_away(&self);

    /// Begins reads of further pieces of a large value, as many as `reader` has room for.
    fn begin_more(self: Arc<Self>, reader: &mut Reader);

    /// The offset of the item in the region, and the buffer that it is in.
    fn item(&self) -> (usize, &Buffer);

    /// Has another waker called when it ends, or at once; false if it was aborted or has failed.
    fn join(&self, waker: &Waker) -> bool;

    /// Whether [`Reading::join`] would be true.
    fn can_be_joined(&self) -> bool;

    /// Asks for the item, to use it for a batch.
    fn ask(&self) -> ReadState;

    /// A batch that has used it ends.
    fn leave(&self);

    /// Gives up its buffer and its hold on the page, if it has ended and nobody uses it; true if so.
    fn abort(&self) -> bool;

    /// Has all who wait go on without the item. The device may still write to the buffer.
    fn give_up(&self);
}

/// The read of an item, among those that were delivered.
pub(crate) fn find(delivered: &[Arc<dyn Reading>], slot: Slot) -> Option<&Arc<dyn Reading>> {
    delivered.iter().find(|read| read.slot().is_same_item(slot))
}
