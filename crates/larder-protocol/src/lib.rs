//! The wire formats of memcached and Redis as values. For servers: bytes in, requests out; replies in,
//! bytes out. For clients: requests in, bytes out; bytes in, answers out.
//!
//! This crate has no sockets and no clocks. It allocates nothing per memcached request, except for some administrative
//! answers.
//!
//! For servers, start with [`Parser::parse`], which reads all three dialects of memcached, then [`Request`],
//! which the dialects share, then [`reply`]. RESP has its own reader, [`resp::read`]. For clients, start with
//! [`encode`], then [`answer`].
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
