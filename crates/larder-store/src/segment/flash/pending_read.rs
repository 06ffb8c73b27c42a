//! The interface of a read from flash, for the requests that wait for it or use its item.

use super::format::Origin;
use crate::Seconds;
use crate::segment::index::word::IndexWord;
use crate::segment::memory::read_buffers::Buffer;
use larder_device::Reader;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// The state of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    InProgress,
    /// The item can be used until [`ItemRead::leave`].
    Whole,
    Failed,
    Aborted,
}

/// The interface to an item's read from flash.
pub(crate) trait ItemRead: Send + Sync + fmt::Debug {
    /// Returns the index word for which the read was started.
    fn word(&self) -> IndexWord;

    /// Returns the hash of the key for which the read was started.
    fn hash(&self) -> u64;

    fn origin(&self) -> Origin;

    /// Returns the second at which the read was started.
    fn begun(&self) -> Seconds;

    /// Returns whether the read has taken longer than allowed.
    fn is_late(&self, now: Seconds) -> bool;

    /// Returns false if only the head of a large item is read, because no memory was free for its
    /// value.
    fn has_value(&self) -> bool;

    /// Transfers the chain of a large item to the record in memory that the index now refers to.
    fn give_value_away(&self);

    /// Returns whether the chain was transferred to a record in memory. If so, another batch must
    /// read the item again: the record may have been removed and its chain reused, while the index
    /// refers to flash again.
    fn has_given_value_away(&self) -> bool;

    /// Starts reads of further pieces of a large value, as many as `reader` has room for.
    fn begin_more(self: Arc<Self>, reader: &mut Reader);

    /// Returns the offset of the item in the region, and the buffer that it is in.
    fn item(&self) -> (usize, &Buffer);

    /// Adds a waker. It is called when the read ends, or when a request must continue the read. If
    /// the item was already read, calls the waker immediately. Returns false if the read was
    /// aborted, has failed or took too long, or if its chain was transferred.
    fn join(&self, waker: &Waker) -> bool;

    /// Returns whether [`ItemRead::join`] would return true.
    fn can_be_joined(&self) -> bool;

    /// Returns the state. If the state is [`ReadState::Whole`], registers the calling batch as a
    /// user of the item until the batch calls [`ItemRead::leave`].
    fn ask(&self) -> ReadState;

    /// Ends a batch's use of the item.
    fn leave(&self);

    /// Releases the buffer and the page, if no batch uses the item and no part of it is being read.
    /// Returns whether it released them.
    fn abort(&self) -> bool;

    /// Makes all waiting requests continue without the item. Unless [`ItemRead::abort`] succeeds,
    /// the device may still write to the buffer.
    fn give_up(&self);
}

/// Returns the delivered read of an item. Returns `None` if no read has delivered the item, or if
/// its value was given away. The caller holds a pin or the lock of the item's stripe, which
/// prevents the reuse of the chain.
pub(crate) fn find(delivered: &[Arc<dyn ItemRead>], word: IndexWord) -> Option<&Arc<dyn ItemRead>> {
    let is_usable =
        |read: &&Arc<dyn ItemRead>| read.word().is_same_item(word) && !read.has_given_value_away();
    delivered.iter().find(is_usable)
}
