//! Command semantics, independent of any protocol: typed operations on an engine, typed outcomes,
//! counters and events.
//!
//! ```text
//!  larder-session (memcached, RESP)   other interfaces
//!          │ lowers requests, encodes outcomes
//!          ▼
//!  OpContext::{content, view, look_up, describe, store, set, refuse, swap, take, remove, edit, copy,
//!              rewrite, count, add, expire, flush, tags, drop_tag}
//!          │ one lookup or one atomic update of one key
//!          ▼
//!  larder_store::Engine
//! ```
//!
//! This crate has no wire formats, sockets or clocks. Callers convert relative expiries to times on
//! the cache's clock. If the order of a request's flags matters, a field of the operation states
//! the order. Where the dialects of a protocol differ, a field selects the behaviour.
//!
//! The outcome of an operation on a key can be `Pending`: the item is on slower storage. A pending
//! operation has changed nothing, counted nothing and delivered no event. The caller repeats the
//! operation after the item was read.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod commands;
mod context;
mod counter;
mod event_queue;
mod events;
mod guard;
mod hot_keys;
mod latency;
mod limits;
mod store_outcome;
#[cfg(test)]
mod test_wakes;
mod thread_counters;
mod tracking;

pub use commands::*;
pub use context::*;
pub use counter::*;
pub use event_queue::*;
pub use events::*;
pub use guard::*;
pub use hot_keys::*;
pub use latency::*;
pub use limits::*;
pub use store_outcome::*;
pub use thread_counters::*;
pub use tracking::*;
