//! `Session`: one connection without a socket. Bytes, the time and an engine go in; bytes and a
//! verdict come out.
//!
//! It is the only place where protocol and store meet, and the place of what memcached's commands
//! mean: each family of commands has a file with its decision, a pure function from what was asked
//! and what is there to a [`larder_store::Change`] and an answer.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod admin;
mod arithmetic;
mod control;
mod counters;
mod delete;
mod dump;
mod events;
mod get;
mod host;
mod login;
mod pending;
mod session;
mod store;
mod time;

pub use counters::*;
pub use events::{Event, PrefixEvent};
pub use host::*;
pub use session::*;
