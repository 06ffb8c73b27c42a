//! The index: finds the location of a key's item.
//!
//! | file | subject |
//! |---|---|
//! | `buckets` | the index: lookups, inserts, moves, splits and repair |
//! | `moved_items` | the walks in progress, and reports of items that walks would miss |
//! | `word` | the packed index word |
//!
//! # Invariants
//! - Index words change only under the lock of their stripe, except for frequencies, which readers
//!   raise.
//! - A word that moves is stored in its new slot before its old slot is cleared, so that readers
//!   without a lock find it.
//! - A move that a walk would miss is reported to the walk before the old slot is cleared.

pub(crate) mod buckets;
pub(crate) mod moved_items;
pub(crate) mod word;
