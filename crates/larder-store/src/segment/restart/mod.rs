//! Restoring a region of an earlier process, and images of it.
//!
//! | file | subject |
//! |---|---|
//! | `image` | writing the region to disk, and loading it |
//! | `region_file` | opening a region in a file |
//! | `attach` | restoring a region: the traces of threads that died, and the steps |
//! | `segment_repair` | dead bytes, write buffers of flash, pages and chains |
//! | `totals` | the allocator and the counts of items |
//! | `survey` | the states of segments, and which index words and records are valid |
//!
//! # Invariants
//! - Every acknowledged change of an item that was not evicted survives, at whatever point the
//!   earlier process died.
//! - A region whose sizes, states or sequences contradict each other is discarded. Index words that
//!   refer to no possible item are removed. A segment whose dead bytes are counted again is freed
//!   if one of its records is not valid.

mod attach;
pub(crate) mod image;
pub(crate) mod region_file;
mod segment_repair;
pub(crate) mod survey;
mod totals;
