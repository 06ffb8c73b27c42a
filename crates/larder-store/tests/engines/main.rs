//! What every engine must do, asked of each of them.
//!
//! | file | what it asks |
//! |---|---|
//! | `behaviour` | single promises of the trait, one by one |
//! | `curve` | what other memory limits would do, as the segment engine says |
//! | `model` | random operations, against a plain map |
//! | `stress` | many threads, with values that know what they should be |
//! | `walk` | going through all items |
#![allow(clippy::disallowed_methods, reason = "tests measure, and draw seeds")]

#[path = "../shared/mod.rs"]
mod shared;

#[macro_use]
mod common;
mod behaviour;
mod curve;
mod model;
mod oracle;
mod stress;
mod walk;
