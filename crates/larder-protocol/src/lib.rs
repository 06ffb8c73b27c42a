//! memcached's wire formats as values: bytes in, requests out; replies in, bytes out.
//!
//! Nothing here owns a socket, reads a clock, or allocates per request.

pub mod reply;
mod request;

pub use request::*;
