//! A region that an earlier process has left, and images of it.
//!
//! | file | subject |
//! |---|---|
//! | `image` | writing the region to disk, and reading it |
//! | `region_file` | opening a region in a file |
//! | `attach` | putting a region in order |
//!
//! # Invariants
//! - Whatever was acknowledged is found again, at whatever point the earlier process has died.
//! - A region that contradicts itself is given up, never repaired by guesses.

pub(crate) mod attach;
pub(crate) mod image;
pub(crate) mod region_file;
