//! A simple reference implementation of memcached, and a reader for conformance transcripts. Only
//! tests use this crate.
//!
//! [`Model`] computes the replies that memcached sends. [`read`] parses a transcript into
//! [`Case`]s, and [`run`] replays a case against any [`Target`].
#![forbid(unsafe_code)]

mod connection;
mod escape;
mod item;
mod meta_get;
mod model;
mod packet;
mod piece;
mod run;
mod transcript;

pub use connection::{ModelConnection, ModelTarget};
pub use model::{Model, Settings};
pub use piece::{Form, Piece};
pub use run::{Received, Target, run, run_bytewise};
pub use transcript::{Action, Case, Step, Version, read, read_folder};
