//! The client for C. `larder.h` is generated from this source code.
//!
//! No panic unwinds into C code. In functions that return a status, a panic becomes
//! [`Status::Panic`]. In other functions, a panic aborts the process.
//!
//! The `# Safety` sections use these terms. A *valid* handle comes from this library and is not
//! freed while the function uses it. A *readable* target is aligned and initialized, and no thread
//! writes to it during the call. A *writable* target is aligned, and no other thread uses it during
//! the call. A string is readable up to and including its terminating zero.

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
