//! The region: its layout, the state of its segments, and the reuse of their memory.
//!
//! | file | subject |
//! |---|---|
//! | `allocator` | the free segments, and the queues of sealed segments (see [`crate::eviction`]) |
//! | `free_lists` | the blocks of dead records, for new records of the same length |
//! | `open_segment` | a segment that a handle appends to; budgets of open segments |
//! | `read_buffers` | segments divided into buffers for reads from flash |
//! | `handle_block` | the words that each handle keeps in the region for a later process |
//! | `table` | the segment table, and the arrays that grow by segments: index, ghosts, pages, tags |
//! | `raw` | access to bytes and words by their offsets: the unsafe code, and its rules |
//! | `cas` | CAS values |
//! | `header_page` | the first page of the region |
//! | `layout` | the offsets of everything in the region |
//! | `epoch` | epoch-based reclamation: when removed memory can be reused |
//!
//! # Invariants
//! - The region contains offsets, never pointers.
//! - A segment passes through the states in the diagram of `table`. Only the allocator holds free
//!   segments.
//! - Memory is reused only after its last lease has ended, and all readers of the epoch in which
//!   its last index word was removed have finished.

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
