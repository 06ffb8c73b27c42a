//! RESP, the protocol of Redis. Requests are the same in RESP2 and RESP3.
//!
//! [`read`] finds the next request of a stream, [`Command::parse`] parses it, and
//! [`crate::reply::resp`] writes replies. As in redis-server, the server first checks the command's
//! name and its number of arguments ([`Request::row`]), and then the arguments.

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
