//! A reader for traces of cache requests, in two text forms.
//!
//! [`Reader`] reads one line at a time, so its memory does not depend on the size of the trace.
//! docs/hitratio.md describes the forms.
#![forbid(unsafe_code)]

mod fields;
mod form;
mod reader;
mod record;

pub use form::Form;
pub use reader::{Reader, TraceError};
pub use record::{Operation, Record};
