//! The client for C. `larder.h` is made of this source.
//!
//! Nothing panics across the boundary: a panic is [`Status::Panic`].

mod client;
mod failure;
mod memory;
mod operations;
mod status;
mod value;

pub use client::*;
pub use failure::*;
pub use operations::*;
pub use status::Status;
pub use value::*;
