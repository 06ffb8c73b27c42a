//! The integration tests of larder-store, as one program.

mod engines;
mod flash;
mod promises;
mod shared;
