//! The state that all handles share.
//!
//! | file | subject |
//! |---|---|
//! | `setup` | setting up the shared state |
//! | `gauges` | the totals of the cache |
//! | `flush` | invalidating all items at once |
//! | `retirement` | records that die, memory that is retired and used again, leases |
//! | `memory_limit` | the limit, what follows from it, and segments that are taken within it |
//! | `shared` | the shared state: its parts, the list of handles, access to records and ghosts |
//! | `member` | a handle as other handles see it, and what it writes with |
//! | `counters` | the counters of a handle |
//! | `config` | the settings of a cache |
//!
//! # Invariants
//! - The list of members is locked before the idle state of a member, and that before the allocator.
//! - All bytes of a retired segment are counted as dead, and `Shared::release` leaves its reuse to its last lease.

pub(crate) mod config;
pub(crate) mod counters;
mod flush;
mod gauges;
pub(crate) mod member;
mod memory_limit;
mod retirement;
mod setup;
pub(crate) mod shared;
