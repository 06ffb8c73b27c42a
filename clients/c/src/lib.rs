//! The client for C. `larder.h` is generated from this source.
//!
//! No panic crosses the boundary: panics become [`Status::Panic`].

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
