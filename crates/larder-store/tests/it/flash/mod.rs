//! The flash tier, on a simulated device in memory with faults that tests select.

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
