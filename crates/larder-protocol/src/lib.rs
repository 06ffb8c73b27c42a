//! memcached's wire formats as values: bytes in, requests out; replies in, bytes out.
//!
//! Nothing here owns a socket, reads a clock, or allocates per request.
//!
//! Start with [`Parser::parse`], which knows all three dialects, then [`Request`], which is what
//! they have in common, then [`reply`]. Clients start with [`answer`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod admin;
pub mod answer;
mod base64;
mod binary;
mod body;
mod classic;
pub mod dump;
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
pub mod response;
mod sasl;
mod tokens;
pub mod watch;
mod write;

pub use fast_get::FastGet;
pub use fast_set::FastSet;
pub use parser::Parser;
pub use request::*;
pub use write::write_request;
