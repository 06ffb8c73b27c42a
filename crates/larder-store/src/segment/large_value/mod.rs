//! Large values, whose front has whole segments of its own (a chain).
//!
//! | file | subject |
//! |---|---|
//! | `builder` | values that are put together from an old value and added bytes |
//! | `chain` | uploads, which fill segments, and leases, which keep them |
//!
//! # Invariants
//! - The segments of an upload belong to it until its chain is published with an item.
//! - A lease keeps the chain and the segment of its item, whatever happens to the item.

pub(crate) mod builder;
pub(crate) mod chain;
