//! The slow, obvious cache that judges the fast one, and the reader of conformance transcripts.
//!
//! Tests only. [`Model`] says what memcached would answer; [`read`] turns a transcript into
//! [`Case`]s and [`run`] plays one against any [`Target`].
#![forbid(unsafe_code)]

mod connection;
mod escape;
mod meta_get;
mod model;
mod packet;
mod run;
mod transcript;

pub use connection::{ModelConnection, ModelTarget};
pub use model::{Model, Settings};
pub use run::{Received, Target, run, run_bytewise};
pub use transcript::{Action, Case, Form, Piece, Step, Version, read, read_folder};
