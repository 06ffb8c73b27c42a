//! The state that all handles share.
//!
//! | file | subject |
//! |---|---|
//! | `setup` | creating the shared state |
//! | `gauges` | the totals of the cache |
//! | `flush` | invalidating all items at once |
//! | `retirement` | records that die, retired memory and its reuse, leases |
//! | `memory_limit` | the limit, the budgets derived from it, and allocating segments within it |
//! | `shared` | the shared state: its parts, the list of handles, access to records and ghosts |
//! | `handle_shared` | the part of a handle that others can access, and its writing state |
//! | `counters` | the counters of a handle |
//! | `config` | the configuration of a cache |
//!
//! # Invariants
//! - The list of handles is locked before the writing state of a handle, and the writing state
//!   before the allocator.
//! - When a sealed segment is retired, all its bytes are counted as dead. A retired segment that
//!   has leases is reused after the last lease has ended.

pub(crate) mod config;
pub(crate) mod counters;
mod flush;
mod gauges;
pub(crate) mod handle_shared;
mod memory_limit;
mod retirement;
mod setup;
pub(crate) mod shared;
