//! The integration tests of larder-compare, one program. `disturbed.rs` uses all processors and is another.

mod common;
mod compare;
mod failures;
mod restart;
