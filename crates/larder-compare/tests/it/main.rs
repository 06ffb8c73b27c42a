//! The integration tests of larder-compare, one program.

mod common;
mod compare;
mod disturbed;
mod failures;
mod restart;
