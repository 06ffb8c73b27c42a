//! Recorded requests of caches, and the forms in which they are read.
//!
//! A trace is read line by line and never kept. docs/hitratio.md describes the form.
#![forbid(unsafe_code)]

mod fields;
mod reader;

pub use reader::{Reader, Record, TraceError};
