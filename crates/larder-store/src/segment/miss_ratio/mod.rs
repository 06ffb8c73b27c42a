//! An estimate of the hit ratio under other limits, from a sample of the keys.
//!
//! | file | subject |
//! |---|---|
//! | `curve` | the sample, and the estimate |
//! | `lru_stack` | the sampled keys in the order of their use |
//!
//! # Invariants
//! - The hash of a key and the threshold determine whether the key is in the sample, so until the
//!   threshold changes, either all lookups of the key count or none.

pub(crate) mod curve;
pub(crate) mod lru_stack;
