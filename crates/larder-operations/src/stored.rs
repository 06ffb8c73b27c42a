//! What became of a store, for the caller and for observers.

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The item is stored.
    Stored {
        /// Its CAS.
        cas: u64,
        /// The length of its whole value in bytes.
        len: usize,
    },
    /// `Add` found an item, or `Replace`, `Append` or `Prepend` found none, or the whole would be too
    /// large.
    NotStored,
    /// The CAS differs.
    Exists,
    /// A CAS was given and nothing is there.
    NotFound,
    /// The item is larger than an item may be.
    TooLarge,
    /// Nothing can be evicted to make room.
    OutOfMemory,
    /// The item is on slower storage: repeat the operation.
    Pending,
}

/// How a value came to be stored, or was to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the operations' own")]
pub enum StoreKind {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Compare,
}
