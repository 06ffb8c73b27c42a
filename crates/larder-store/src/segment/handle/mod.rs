//! The state of a handle: one thread's access to the cache.
//!
//! | file | subject |
//! |---|---|
//! | `sample` | which of the used keys enter the miss-ratio sample |
//! | `state` | the handle, its pin, its search for expired items, and the items that callers see |
//! | `batch_reads` | the reads from flash that a handle has started, and the items that its batch uses |
//!
//! # Invariants
//! - A handle reads items only under its pin, or under the lock of their stripe.
//! - A handle owns its writing state from the first write of a batch to the end of the batch.

pub(crate) mod batch_reads;
pub(crate) mod sample;
pub(crate) mod state;
