//! RESP, the protocol of Redis. Requests are the same in RESP2 and RESP3.
//!
//! [`read`] finds the next request of a stream, [`Command::parse`] parses it, and [`crate::reply::resp`] writes
//! answers. As in redis-server, an unknown command or a wrong number of arguments ([`Request::row`]) is reported before
//! any argument is checked.

mod command;
mod command_parser;
mod decimal;
mod error;
mod fault;
mod glob;
mod inline;
mod item_parser;
mod key;
mod number;
mod request;
mod script;
mod table;
mod tracking;
mod words;

pub use command::*;
pub use decimal::*;
pub use error::*;
pub use fault::*;
pub use glob::matches;
pub use inline::*;
pub use item_parser::decimal;
pub use key::*;
pub use number::i64_of;
pub use request::*;
pub use script::*;
pub use table::*;
pub use tracking::*;
