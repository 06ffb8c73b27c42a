//! The wire formats of memcached and Redis. A server parses requests and encodes replies. A client
//! encodes requests and parses replies.
//!
//! This crate has no sockets and no clocks. It allocates nothing per memcached request, except for
//! some administrative replies.
//!
//! For servers, start with [`Parser::parse`], which reads all three dialects of memcached (classic
//! text, meta text and binary). The dialects share the type [`Request`], and [`reply`] encodes the
//! replies. RESP has a separate parser, [`resp::read`]. For clients, start with [`encode`], then
//! [`answer`].
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
