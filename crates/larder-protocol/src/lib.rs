//! memcached's wire formats as values, for servers (bytes in, requests out; replies in, bytes out) and
//! for clients (requests in, bytes out; bytes in, answers out).
//!
//! Nothing here owns a socket, reads a clock, or allocates per request.
//!
//! For servers, start with [`Parser::parse`], which knows all three dialects, then [`Request`], which
//! is what they have in common, then [`reply`]. RESP has a reader of its own, [`resp::read`]. For clients, start with [`encode`], then [`answer`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

pub mod answer;
pub mod dump;
pub mod encode;
mod meta_flags;
mod parse;
pub mod reply;
mod request;
pub mod resp;
pub mod response;
mod slot;
mod text;
pub mod watch;

pub use parse::fast_get::FastGet;
pub use parse::fast_set::FastSet;
pub use parse::parser::Parser;
pub use request::*;
pub use slot::{SLOTS, slot};
