//! The index: which key is where.
//!
//! | file | subject |
//! |---|---|
//! | `buckets` | the index: look-ups, inserts, moves, splits and repair |
//! | `moved_items` | the walks under way, and the items that move behind them |
//! | `slot` | the packed index word |
//!
//! # Invariants
//! - Index words change only under the lock of their stripe, but for frequencies, which readers raise.
//! - A word that moves is in its new place before it leaves the old one, so that readers without a lock find it.
//! - What is moved behind a walk is reported to it before the old place is cleared.

pub(crate) mod buckets;
pub(crate) mod moved_items;
pub(crate) mod slot;
