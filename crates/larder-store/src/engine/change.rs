//! Changes of items, and why an engine refuses one.

use super::{Access, Attributes, Tag};

/// What the closure of an update decides about the item that it was shown.
#[derive(Clone, Copy, Debug)]
pub enum Change<'v> {
    /// Leave the item as it is.
    Keep,
    /// Leave the item as it is, and count an access.
    MarkAccessed,
    /// Leave the item as it is, and count a use for eviction. Neither [`Item::fetched`] nor
    /// [`Item::accessed`] change.
    Promote,
    /// Remove the item.
    Remove,
    /// Keep the value and replace the attributes.
    SetAttributes {
        /// All attributes that the item has afterwards.
        attributes: Attributes,
        /// The CAS that the item has afterwards.
        cas: NewCas,
        /// Whether this counts as an access.
        access: Access,
    },
    /// Store an item in place of the one that is there, if there is one.
    Put {
        /// All attributes of the new item.
        attributes: Attributes,
        /// The CAS of the new item.
        cas: NewCas,
        /// The value of the new item, or how it is made from the old one.
        value: NewValue<'v>,
        /// Whether the new item counts as read already (the client that created it was shown it).
        fetched: bool,
        /// The tags of the new item.
        tags: NewTags<'v>,
    },
}

/// The tags of an item that is stored.
#[derive(Clone, Copy, Debug)]
pub enum NewTags<'v> {
    /// It has none.
    None,
    /// Those that the old item has, if there is one.
    Same,
    /// These; at most [`TAGS_MAX`].
    These(&'v [Tag]),
}

/// The CAS of an item that is changed or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewCas {
    /// A CAS that no other item has had, higher than the item's old one.
    Fresh,
    /// The CAS that the item has.
    Same,
    /// This CAS, which the client has chosen.
    Exactly(u64),
}

/// The source of a new value.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'v> {
    /// These bytes.
    Bytes(&'v [u8]),
    /// A number: the first `len` bytes of `digits`, then spaces up to `width` bytes in all.
    Number {
        /// Its decimal digits, followed by unused bytes.
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
    /// The item's value, then the uploaded one.
    AppendUploaded,
    /// The uploaded value, then the item's.
    PrependUploaded,
}

/// The greatest width to which a number is padded, in bytes.
pub const NUMBER_WIDTH_MAX: usize = 4096;

/// The padding of the widest number.
pub(crate) static SPACES: [u8; NUMBER_WIDTH_MAX] = [b' '; NUMBER_WIDTH_MAX];

/// Why an update was refused. The item that was there is still there, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room and nothing can be evicted. A later attempt may succeed.
    OutOfMemory,
    /// The item is larger than this cache can store, or its key has no bytes or more than
    /// [`KEY_LEN_MAX`]. A later
    /// attempt will not succeed.
    TooLarge,
    /// The upload belongs to another cache, or is shorter than its announced length.
    WrongUpload,
    /// The engine has no tags.
    NoTags,
    /// The item is on slower storage: the closure was not called, or its answer does not count. Begin
    /// to read the item with [`SlowStorage::start_read`], and repeat the update when the waker was called.
    Pending,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Updated<R> {
    /// The result of the closure's last call.
    pub result: R,
    /// The item's CAS afterwards; 0 if it has none or was removed.
    pub cas: u64,
}

/// Why an item is removed that can't be shown any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// It has expired.
    Expired,
    /// It was flushed with all others.
    Flushed,
    /// One of its tags was dropped.
    Untagged,
}
