//! Large values, whose front has whole segments of its own (a chain).
//!
//! | file | subject |
//! |---|---|
//! | `builder` | values that are put together from an old value and added bytes |
//! | `upload` | values that arrive in pieces, in segments of their own |
//! | `lease` | readers that keep the segments of a value |
//!
//! # Invariants
//! - The segments of an upload belong to it until its chain is published with an item.
//! - A lease keeps the chain and the segment of its item, whatever happens to the item.

pub(crate) mod builder;
pub(crate) mod lease;
pub(crate) mod upload;
