//! `Session`: one connection without a socket. Bytes, the time and an engine go in; bytes and a
//! verdict come out.

mod counters;
mod host;
mod session;

pub use counters::*;
pub use host::*;
pub use session::*;
