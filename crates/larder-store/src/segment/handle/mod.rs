//! The state of a handle: one thread's access to the cache.
//!
//! | file | subject |
//! |---|---|
//! | `sample` | samples of lookups and writes for the miss-ratio curve |
//! | `state` | the handle, its pin, its search for expired items, and the items that callers see |
//! | `batch_reads` | the reads from flash of a handle, and the items that its batch uses |
//!
//! # Invariants
//! - A handle reads items in the index only under its pin, under the lock of their stripe, or in a
//!   segment that it owns.
//! - A handle owns its writing state from the first write of a batch to the end of the batch, or
//!   until it waits for other handles.

pub(crate) mod batch_reads;
pub(crate) mod sample;
pub(crate) mod state;
