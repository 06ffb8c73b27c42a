//! Items, as an engine shows them.

use super::{Expiry, Seconds};

/// The longest key in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// A key with its hash, so that a batch hashes once and prefetches ahead.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'k> {
    /// 1 to [`KEY_LEN_MAX`] bytes.
    pub bytes: &'k [u8],
    /// The result of [`Lookups::hash`] for these bytes.
    pub hash: u64,
}

/// The attributes of an item: all of it but key, value and CAS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// A number of the client's. The cache does not interpret it.
    pub client_flags: u32,
    /// When the item expires.
    pub expiry: Expiry,
    /// Kept for the caller: the item was invalidated, but is still shown.
    pub stale: bool,
    /// Kept for the caller: a client was told to recache the item.
    pub won: bool,
    /// Kept for the caller: the client sent the key in base64.
    pub binary_key: bool,
}

/// An item, borrowed for the time of a closure.
#[derive(Debug)]
pub struct Item<'a, L> {
    /// Client flags, expiry and marks.
    pub attributes: Attributes,
    /// Changes with every write; 0 where the engine keeps none.
    pub cas: u64,
    /// Whether the item was read since it was stored.
    pub fetched: bool,
    /// When the item was last read, or stored if it was never read. The time is approximate for items
    /// that live long.
    pub accessed: Seconds,
    /// The value, or a lease on it.
    pub value: Value<'a, L>,
}

/// The part of an item that [`Lookups::content`] shows.
#[derive(Debug)]
pub struct Content<'a, L> {
    /// A number of the client's.
    pub client_flags: u32,
    /// Changes with every write; 0 where the engine keeps none.
    pub cas: u64,
    /// The value, or a lease on it.
    pub value: Value<'a, L>,
}

/// A borrowed value.
#[derive(Clone, Debug)]
pub enum Value<'a, L> {
    /// The whole value.
    Whole(&'a [u8]),
    /// A value that is too large to be copied at once: a lease on it, which may outlive the closure.
    Large(L),
}

impl<L: Lease> Value<'_, L> {
    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller asks whether a value is empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Large(lease) => lease.len(),
        }
    }
}

/// Access to a large value, piece by piece. The value stays as it is for as long as the lease lives,
/// even if its item is replaced or removed.
#[expect(clippy::len_without_is_empty, reason = "a large value is not empty")]
pub trait Lease: Clone {
    /// The length of the value in bytes.
    fn len(&self) -> usize;
    /// The bytes from `offset` on that are contiguous in memory: at least one while `offset < len`.
    fn piece(&self, offset: usize) -> &[u8];
    /// Whether the lease may outlive the batch. If so much memory is leased already that it may not,
    /// the caller copies the value now, or refuses the request.
    fn may_be_kept(&self) -> bool {
        true
    }
}

/// The most tags that an item can have.
pub const TAGS_MAX: usize = 7;

/// A tag, as an engine keeps it in items: see [`Updates::tag`]. It loses its meaning when the tag is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub(crate) u64);
