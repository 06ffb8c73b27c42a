//! Large values, whose front is in whole segments of its own (a chain).
//!
//! | file | subject |
//! |---|---|
//! | `builder` | values that are assembled from the bytes of a request and an old value |
//! | `upload` | values that arrive in pieces, in segments of their own |
//! | `lease` | leases, which protect the segments of a value from reuse |
//!
//! # Invariants
//! - The segments of an upload belong to it until its chain is published with an item.
//! - A lease keeps the chain, and the segment of the item if it contains a tail of the value,
//!   whatever happens to the item.

pub(crate) mod builder;
pub(crate) mod lease;
pub(crate) mod upload;
