//! The state of a handle: one thread's access to the cache.
//!
//! | file | subject |
//! |---|---|
//! | `sample` | which of the used keys the miss-ratio sample takes |
//! | `state` | the handle, its pin, its search for expired items, and items as callers see them |
//! | `batch_reads` | the reads from flash that a handle has begun, and what they delivered to its batch |
//!
//! # Invariants
//! - A handle reads items only under its pin, or under the lock of their stripe.
//! - What it writes with is its own from the first write of a batch to the end of the batch.

pub(crate) mod batch_reads;
pub(crate) mod sample;
pub(crate) mod state;
