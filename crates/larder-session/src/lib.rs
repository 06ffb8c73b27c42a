//! `Session`: one connection without a socket. Bytes, the time and an engine go in; bytes come out, and
//! what the driver has to do next.
//!
//! This crate alone depends on both the protocol and the operations: `memcached/lower.rs` turns requests
//! into operations, [`larder_operations`] executes them, and `memcached/get.rs` and `store.rs` encode their
//! outcomes. `resp/` does all of that for RESP.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod context;
mod events;
mod forward;
mod host;
mod memcached;
mod resp;
mod resume;
mod route;
mod scatter;
mod session;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;

pub use context::*;
pub use events::notify_host;
pub use host::*;
pub use route::{Conversation, ForwardId, ForwardOutcome, Group, Owner, Route};
pub use session::*;
