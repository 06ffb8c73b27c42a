//! A region that an earlier process has left, and images of it.
//!
//! | file | subject |
//! |---|---|
//! | `image` | writing the region to disk, and reading it |
//! | `region_file` | opening a region in a file |
//! | `attach` | putting a region in order: what a thread that died may have left, and the steps |
//! | `segment_repair` | dead bytes, write buffers of flash, pages and chains |
//! | `totals` | the allocator and the counts of items |
//! | `survey` | the states of segments, and which index words and records are valid |
//!
//! # Invariants
//! - Whatever was acknowledged is found again, at whatever point the earlier process has died.
//! - A region that contradicts itself is given up, never repaired by guesses.

mod attach;
pub(crate) mod image;
pub(crate) mod region_file;
mod segment_repair;
pub(crate) mod survey;
mod totals;
