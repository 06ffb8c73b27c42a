//! Restores an earlier process's region, and writes and loads region images.
//!
//! | file | subject |
//! |---|---|
//! | `image` | writing the region to disk, and loading it |
//! | `region_file` | opening a region in a file |
//! | `attach` | the steps of a restore, and the traces that threads leave when they die |
//! | `segment_repair` | dead bytes, write buffers of flash, pages and chains |
//! | `totals` | the allocator and the counts of items |
//! | `survey` | the states of segments, and which index words and records are valid |
//!
//! # Invariants
//! - Every acknowledged change of an item that was not evicted survives the death of the process at
//!   any point.
//! - A region whose sizes, states or sequences contradict each other is discarded. Index words that
//!   refer to no possible item are removed. A segment whose dead bytes are counted again is freed
//!   if one of its records is not valid.

mod attach;
pub(crate) mod image;
pub(crate) mod region_file;
mod segment_repair;
pub(crate) mod survey;
mod totals;
