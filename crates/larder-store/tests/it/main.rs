//! The integration tests of larder-store, one program.

mod engines;
mod flash;
mod promises;
mod shared;
