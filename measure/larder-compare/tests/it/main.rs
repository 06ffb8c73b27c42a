//! The integration tests of larder-compare, in one program. `disturbed.rs` is a separate program,
//! because it keeps two processors busy.

mod common;
mod compare;
mod failures;
mod restart;
