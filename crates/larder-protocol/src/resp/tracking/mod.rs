//! `CLIENT TRACKING`: options and errors.

pub(super) mod error;
pub(super) mod options;

pub use error::*;
pub use options::*;
