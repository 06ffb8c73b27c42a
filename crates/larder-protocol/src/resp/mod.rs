//! RESP, the protocol of Redis: requests in RESP2 and RESP3, which are the same on the wire.
//!
//! [`read`] finds the next request of a stream, [`Command::parse`] says what it asks for, and
//! [`crate::reply::resp`] writes answers. As in redis-server, an unknown command or a wrong number of
//! arguments ([`Request::row`]) is found before the arguments are looked at.

mod command;
mod command_parser;
mod error;
mod fault;
mod glob;
mod inline;
mod key;
mod number;
mod request;
mod table;

pub use command::*;
pub use error::*;
pub use fault::*;
pub use glob::matches;
pub use inline::*;
pub use key::*;
pub use request::*;
pub use table::*;
