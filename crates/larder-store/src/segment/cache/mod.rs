//! The state that all handles share.
//!
//! | file | subject |
//! |---|---|
//! | `shared` | the shared state: its parts, limits, retired memory, totals |
//! | `flush` | invalidating all items at once |
//! | `member` | a handle as other handles see it, and what it writes with |
//! | `evacuation` | a segment that is being emptied |
//! | `counters` | the counters of a handle |
//! | `config` | the settings of a cache |
//!
//! # Invariants
//! - The list of members is locked before the idle state of a member, and that before the allocator.
//! - Retired memory is counted dead completely; `Shared::release` waits for its last lease.

pub(crate) mod config;
pub(crate) mod counters;
pub(crate) mod evacuation;
pub(crate) mod flush;
pub(crate) mod member;
pub(crate) mod shared;
