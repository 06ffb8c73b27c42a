//! Changes of items, and the reasons to refuse a change.

use super::{Access, Attributes, Tag};

/// The decision of an update's closure about the item.
#[derive(Clone, Copy, Debug)]
pub enum Change<'v> {
    /// Leave the item as it is.
    Keep,
    /// Leave the item as it is, and record an access.
    MarkAccessed,
    /// Leave the item as it is, and count a hit for eviction. `Item::fetched` and
    /// `Item::accessed` do not change.
    CountHit,
    /// Remove the item.
    Remove,
    /// Keep value and tags, and replace the attributes. Without a live item, nothing changes.
    SetAttributes {
        /// The new attributes, all of them.
        attributes: Attributes,
        /// The new CAS of the item.
        cas: NewCas,
        /// Whether the change counts as an access.
        access: Access,
    },
    /// Store an item. It replaces an existing item.
    Put {
        /// All attributes of the new item.
        attributes: Attributes,
        /// The CAS of the new item.
        cas: NewCas,
        /// The new value, or how the engine derives it from the old value.
        value: NewValue<'v>,
        /// Whether the new item already counts as read. A client that creates an item on a miss has
        /// seen its value.
        fetched: bool,
        /// The tags of the new item.
        tags: NewTags<'v>,
    },
}

/// The tags to store with an item.
#[derive(Clone, Copy, Debug)]
pub enum NewTags<'v> {
    /// No tags.
    None,
    /// The tags of the old item; no tags if there is no old item.
    Same,
    /// These tags; at most `TAGS_MAX`.
    These(&'v [Tag]),
}

/// The new CAS of an item that is changed or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewCas {
    /// The next value of the cache's counter. It differs from all earlier values of the counter,
    /// and is higher than the item's old CAS. The exception is an old CAS that a client chose above
    /// the counter: the new CAS may be lower if the old CAS is very high, or if the cache has a
    /// limit (`CacheControl::set_cas_range`).
    Fresh,
    /// The item's old CAS; 0 if there is no old item.
    Same,
    /// This CAS, chosen by the client.
    Exactly(u64),
}

/// The source of a new value.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'v> {
    /// These bytes.
    Bytes(&'v [u8]),
    /// A number: the first `len` bytes of `digits`, then spaces up to `width` bytes in all.
    Number {
        /// The decimal digits, followed by unused bytes.
        digits: [u8; 20],
        /// The number of digits.
        len: u8,
        /// The length of the value in bytes, at most [`NUMBER_WIDTH_MAX`].
        width: usize,
    },
    /// The item's value, then these bytes.
    Append(&'v [u8]),
    /// These bytes, then the item's value.
    Prepend(&'v [u8]),
    /// The uploaded value.
    Uploaded,
    /// The item's value, then the uploaded value.
    AppendUploaded,
    /// The uploaded value, then the item's value.
    PrependUploaded,
}

impl NewValue<'_> {
    /// Returns whether the value counts as a new item. Every value counts as one, except a number
    /// with the length of the old value. `old_len` returns the old value's length in bytes.
    pub(crate) fn makes_item(&self, old_len: impl FnOnce() -> Option<usize>) -> bool {
        !matches!(*self, Self::Number { width, .. } if old_len() == Some(width))
    }
}

/// The maximum width, in bytes, to which a number is padded.
pub const NUMBER_WIDTH_MAX: usize = 4096;

/// The spaces that pad numbers: enough for the maximum width.
pub(crate) static SPACES: [u8; NUMBER_WIDTH_MAX] = [b' '; NUMBER_WIDTH_MAX];

/// The reason why an engine refused an update, an upload or a tag. The refused call has changed no
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The memory limit is reached or the system refuses memory, and the engine can't free memory
    /// now. A retry may succeed.
    OutOfMemory,
    /// The item is larger than this cache can store, its key is empty or longer than
    /// `KEY_LEN_MAX`, or an upload exceeds its announced length. A retry cannot succeed.
    TooLarge,
    /// The change needs an upload, and the upload is missing, belongs to another cache, or is
    /// shorter than its announced length.
    WrongUpload,
    /// The engine does not support tags.
    NoTags,
    /// The change needs a fresh CAS, and the cache has used up its range of CAS values (see
    /// `CacheControl::set_cas_range`). A retry may succeed.
    NoCas,
    /// The item is on slower storage. The engine has not called the closure, or has discarded its
    /// result. Start a read with `SlowStorage::start_read`, and repeat the update when the engine
    /// calls the waker.
    Pending,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Updated<R> {
    /// The result of the closure's last call.
    pub result: R,
    /// The item's CAS after the update; 0 if the cache stores no CAS or there is no item.
    pub cas: u64,
}

/// The reason why the engine removes an item that is no longer valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// The item has expired.
    Expired,
    /// A flush has invalidated the item.
    Flushed,
    /// One of the item's tags was dropped.
    Untagged,
}
