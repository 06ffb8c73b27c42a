//! Store outcomes and store kinds, for callers and observers.

/// The outcome of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The item was stored.
    Stored {
        /// The item's new CAS.
        cas: u64,
        /// The length of the whole value in bytes.
        len: usize,
    },
    /// `Add` found an item; `Replace`, `Append` or `Prepend` found no item; the condition of a
    /// [`Swap`](crate::Swap) does not hold; or the concatenated value would be too large.
    NotStored,
    /// The item has another CAS.
    Exists,
    /// A store with a CAS has found no item.
    NotFound,
    /// The item would be larger than [`Limits::item_size_max`](crate::Limits::item_size_max), or
    /// the engine refuses the item for a reason other than a lack of memory.
    TooLarge,
    /// Nothing can be evicted to make room, or the caller of
    /// [`OpContext::swap`](crate::OpContext::swap) could not show the old item.
    OutOfMemory,
    /// The leader of the group has used up its range of CAS values, and cannot reserve another
    /// range now.
    NoCas,
    /// The item is on slower storage: repeat the operation.
    Pending,
}

/// The kind of a store, for observers.
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
