//! The behaviour that every engine must have, tested with each of them.
//!
//! | file | what it tests |
//! |---|---|
//! | `behaviour` | single promises of the trait, one by one |
//! | `curve` | the miss-ratio curve of the segment engine |
//! | `model` | random operations, against a plain map |
//! | `stress` | many threads, with values that can be checked |
//! | `walk` | the walk over all items |
#![allow(clippy::disallowed_methods, reason = "tests measure, and draw seeds")]

#[macro_use]
mod common;
mod behaviour;
mod curve;
mod model;
mod oracle;
mod stress;
mod walk;
