//! memcached's wire formats as values, for servers (bytes in, requests out; replies in, bytes out) and
//! for clients (requests in, bytes out; bytes in, answers out).
//!
//! Nothing here owns a socket, reads a clock, or allocates per request.
//!
//! For servers, start with [`Parser::parse`], which knows all three dialects, then [`Request`], which
//! is what they have in common, then [`reply`]. RESP has a reader of its own, [`resp::read`]. For clients, start with [`encode`], then [`answer`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod admin;
pub mod answer;
mod base64;
mod binary;
mod body;
mod classic;
pub mod dump;
pub mod encode;
mod fast_get;
mod fast_set;
mod letters;
mod line;
mod login;
mod meta;
mod meta_flags;
mod noreply;
mod number;
mod parsed;
mod parser;
pub mod reply;
mod request;
pub mod resp;
pub mod response;
mod sasl;
mod slot;
mod tokens;
pub mod watch;

pub use fast_get::FastGet;
pub use fast_set::FastSet;
pub use parser::Parser;
pub use request::*;
pub use slot::{SLOTS, slot};
