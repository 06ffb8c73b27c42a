//! An estimate of the hit ratio under other limits, from a sample of the keys.
//!
//! | file | subject |
//! |---|---|
//! | `curve` | the sample, and the estimate |
//! | `lru_stack` | the sampled keys in the order of their use |
//!
//! # Invariants
//! - Only the hash of a key determines whether the key is in the sample, so either all lookups of
//!   it count or none.

pub(crate) mod curve;
pub(crate) mod lru_stack;
