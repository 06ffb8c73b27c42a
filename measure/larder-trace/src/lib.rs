//! Recorded requests of caches, and the forms in which they are read.
//!
//! A trace is read line by line and never kept. docs/hitratio.md describes the forms.
#![forbid(unsafe_code)]

mod fields;
mod form;
mod reader;
mod record;

pub use form::Form;
pub use reader::{Reader, TraceError};
pub use record::{Operation, Record};
