//! The flash tier, over a device in memory that fails as tests tell it to.

#![expect(clippy::disallowed_methods, reason = "tests measure time, and wait for the device")]

mod common;
mod copies;
mod faults;
mod large;
mod meaning;
mod restart;
mod space;
mod threads;
mod walks;
