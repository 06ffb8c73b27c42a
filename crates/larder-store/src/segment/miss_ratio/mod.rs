//! The hit ratio under other limits, from a sample of the keys.
//!
//! | file | subject |
//! |---|---|
//! | `curve` | the sample, and the estimate |
//! | `lru_stack` | the sampled keys in the order of their use |
//!
//! # Invariants
//! - A key is in the sample or not by its hash alone, so that all look-ups of it count or none.

pub(crate) mod curve;
pub(crate) mod lru_stack;
