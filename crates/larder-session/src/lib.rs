//! `Session`: one connection without a socket. Bytes, the time and an engine go in; bytes come out, and
//! what the driver has to do next.
//!
//! This crate alone depends on both the protocol and the operations: `lower.rs` turns requests into
//! operations, [`larder_operations`] executes them, and `get.rs` and `store.rs` encode their outcomes. `resp/`
//! does all of that for RESP.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod admin;
mod batch;
mod context;
mod control;
mod dump;
mod events;
mod execute;
mod forward;
mod get;
mod host;
#[cfg(feature = "kit")]
pub mod kit;
mod login;
mod lower;
mod pending;
mod read_only;
mod resp;
mod resume;
mod route;
mod scatter;
mod servers;
mod session;
mod store;
mod tags;
mod time;

pub use context::*;
pub use events::pass_on;
pub use host::*;
pub use route::{Conversation, Group, Owner, Passed, Route, Routed};
pub use session::*;
