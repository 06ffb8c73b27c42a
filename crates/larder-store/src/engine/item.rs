//! Items as an engine passes them to its callers.

use super::{Expiry, Seconds};

/// The maximum length of a key in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// A key with its hash. A caller hashes each key of a batch only once, and can use the hash to
/// prefetch.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'k> {
    /// 1 to [`KEY_LEN_MAX`] bytes.
    pub bytes: &'k [u8],
    /// The result of `Lookups::hash` for these bytes.
    pub hash: u64,
}

/// The attributes that an update sets: client flags, expiry, and marks of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// A number chosen by the client. The cache does not interpret it.
    pub client_flags: u32,
    /// The time at which the item expires.
    pub expiry: Expiry,
    /// Whether a client has invalidated the item although lookups still return it. The engine only
    /// stores this mark for the caller.
    pub stale: bool,
    /// Whether a client has been chosen to recache the item. The engine only stores this mark for
    /// the caller.
    pub won: bool,
    /// Whether text protocols send the key in base64. The engine only stores this mark for the
    /// caller.
    pub binary_key: bool,
}

/// An item, borrowed for the duration of a closure.
#[derive(Debug)]
pub struct Item<'a, L> {
    /// Client flags, expiry and marks.
    pub attributes: Attributes,
    /// The CAS. Each write sets it (see [`super::NewCas`]). 0 if the cache stores no CAS.
    pub cas: u64,
    /// Whether the item was read since it was stored. Only reads with [`super::Access::Tracked`]
    /// count. An item can also be stored as already read.
    pub fetched: bool,
    /// The time of the last tracked access, or of the store if there was none. Approximate for
    /// items that live long.
    pub accessed: Seconds,
    /// The location of the item on flash, if a walk passes the item; `None` if the item is in
    /// memory, and outside walks.
    pub flash_location: Option<FlashLocation>,
    /// The value, or a lease on it.
    pub value: Value<'a, L>,
}

/// The location of an item on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashLocation {
    /// The number of the page.
    pub page: u32,
    /// The offset in bytes within the page.
    pub offset: u32,
}

/// The part of an item that `Lookups::content` passes to its closure.
#[derive(Debug)]
pub struct Content<'a, L> {
    /// A number chosen by the client: see [`Attributes::client_flags`].
    pub client_flags: u32,
    /// The CAS: see [`Item::cas`].
    pub cas: u64,
    /// The value, or a lease on it.
    pub value: Value<'a, L>,
}

/// A borrowed value.
#[derive(Clone, Debug)]
pub enum Value<'a, L> {
    /// The complete value.
    Whole(&'a [u8]),
    /// A lease on a value that is too large to be copied in one step. The lease may outlive the
    /// closure.
    Large(L),
}

impl<L: Lease> Value<'_, L> {
    /// Returns the length in bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "no caller needs to know whether a value is empty"
    )]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Large(lease) => lease.len(),
        }
    }
}

/// Access to a large value in pieces. While the lease exists, the value does not change, even if
/// the item is replaced or removed.
#[expect(clippy::len_without_is_empty, reason = "a large value is not empty")]
pub trait Lease: Clone {
    /// Returns the length of the value in bytes.
    fn len(&self) -> usize;
    /// Returns the bytes from `offset` on that are contiguous in memory: at least one byte if
    /// `offset < len`.
    fn piece(&self, offset: usize) -> &[u8];
    /// Returns the number of memory bytes that the lease protects from reuse.
    fn memory(&self) -> usize {
        self.len()
    }
    /// Returns whether the caller may keep the lease after the batch. Returns false if too much
    /// memory is leased already. The caller then copies the value now, or refuses the request.
    fn may_be_kept(&self) -> bool {
        true
    }
}

/// The maximum number of tags per item.
pub const TAGS_MAX: usize = 7;

/// A tag, as items store it: see [`super::Updates::tag`]. After the tag is dropped, lookups return
/// [`super::Lookup::Flushed`] for items with this value, even for items that are stored later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub(crate) u64);
