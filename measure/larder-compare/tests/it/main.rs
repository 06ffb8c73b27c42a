//! The integration tests of larder-compare, in one program. `disturbed.rs` uses all processors and is a separate one.

mod common;
mod compare;
mod failures;
mod restart;
