//! The region: its layout, what is known of its segments, and the reuse of their memory.
//!
//! | file | subject |
//! |---|---|
//! | `allocator` | the free segments and the queues, in the order of [`crate::eviction`] |
//! | `free_lists` | the places of dead records, for new records of the same length |
//! | `open_segment` | a segment that is appended to; budgets of open segments |
//! | `read_buffers` | segments cut into buffers for reads from flash |
//! | `handle_block` | what each handle leaves in the region for a later process |
//! | `table` | the segment table, and the arrays that grow by segments: index, ghosts, pages, tags |
//! | `raw` | access to bytes and words by their offsets: the unsafe code, and the rules that it relies on |
//! | `cas` | CAS values |
//! | `header_page` | the first page of the region |
//! | `layout` | the places of everything in the region |
//! | `epoch` | when memory that was removed from the index can be used again |
//!
//! # Invariants
//! - Nothing but offsets is stored in the region.
//! - A segment goes through the states that `table` draws, and is free only in the allocator.
//! - Memory is used again one epoch after the last index word into it was removed, and after its last lease.

pub(crate) mod allocator;
pub(crate) mod cas;
pub(crate) mod epoch;
pub(crate) mod free_lists;
pub(crate) mod handle_block;
pub(crate) mod header_page;
pub(crate) mod layout;
pub(crate) mod open_segment;
pub(crate) mod raw;
pub(crate) mod read_buffers;
pub(crate) mod table;
