//! `Session`: the protocol state machine of one connection, without a socket. Its arguments are
//! bytes, the time and an engine. Its results are bytes and the driver's next action.
//!
//! This crate connects the protocol with the operations: `memcached/lower.rs` converts requests to
//! operations, [`larder_operations`] executes them, and `memcached/get.rs` and `memcached/store.rs`
//! encode outcomes. `resp/` does the same for RESP. `forward.rs` and `scatter/` send requests to
//! the nodes that own their keys. `session/` contains the state of a connection. All other folders
//! depend on `session/`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod context;
mod events;
mod forward;
mod forward_upload;
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
pub use route::{AnsweredPart, Conversation, ForwardId, ForwardOutcome, GroupIndex, Owner, Route};
pub use session::*;
