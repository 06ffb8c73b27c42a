//! The behaviour that every engine must have, tested with each engine.
//!
//! | file | subject |
//! |---|---|
//! | `behaviour` | the behaviour that the trait requires, one test each |
//! | `changes` | reports of changes to an observer |
//! | `curve` | the miss-ratio curve of the segment engine |
//! | `model` | random operations, compared with a simple map |
//! | `stress` | many threads, with values that can be checked |
//! | `walk` | the walk over all items |
#![allow(clippy::disallowed_methods, reason = "tests measure, and draw seeds")]

#[macro_use]
mod common;
mod behaviour;
mod cas_range;
mod changes;
mod curve;
mod model;
mod oracle;
mod stress;
mod walk;
