//! `Session`: one connection without a socket. Bytes, the time and an engine go in; bytes and a
//! verdict come out.
//!
//! It is the only place where protocol and operations meet: `lower.rs` makes operations of requests,
//! [`larder_operations`] says what they mean, and `get.rs` and `store.rs` encode their outcomes.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod admin;
mod context;
mod control;
mod dump;
mod events;
mod get;
mod host;
#[cfg(feature = "kit")]
pub mod kit;
mod login;
mod lower;
mod pending;
mod resume;
mod session;
mod store;
mod time;

pub use context::*;
pub use host::*;
pub use session::*;
