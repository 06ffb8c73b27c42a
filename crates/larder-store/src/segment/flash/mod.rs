//! The flash tier: the cache writes items that it would evict from memory to flash, and reads them
//! from there when a request needs them.
//!
//! ```text
//!  evicted ──copied──▶ write buffer ──full──▶ queue ──written as a block──▶ on flash
//!                      (index words refer to it, as to any other)              (index words refer to flash)
//! ```
//! No index word refers to flash before the write has completed: until then lookups find the items
//! in the write buffer. So a torn write loses no item that lookups could find. It can only destroy
//! the earlier content of the block, to which no index word refers any more.
//!
//! This folder has the state of the tier, which all handles share. `flash_read` reads items.
//! `flash_write` writes them and reclaims pages.
//!
//! | file | subject |
//! |---|---|
//! | `tier` | the state of the tier: settings, reads and writes under way, failures |
//! | `pages` | the pages, in the region, and their lists |
//! | `pending_read` | the interface of a read for the requests that wait for it or use it |
//! | `format` | the format of items on flash |
//! | `write_queue` | write buffers that wait for their write |
//! | `counters` | the counters of the tier |
//!
//! # Invariants
//! 1. An index word that refers to flash refers to an item that was written completely. A page is
//!    not overwritten until all index words that refer to it were removed, and all reads from it
//!    have ended. If a word is left over, a lookup by this word finds nothing, because a later use
//!    of the page has another sequence.
//! 2. A page gets a sequence when it is opened, like a segment, so a flush invalidates pages as it
//!    does segments. A page is chosen for a write only if it is not below the flush floor.
//!    Afterwards, index words change to flash only if the segment that their items come from is not
//!    below the floor.
//! 3. A write buffer belongs to the handle that fills it, then to the queue, then to the thread
//!    that writes it. Its items do not change in place, except for marks in their headers: readers
//!    note accesses, and writers mark removed items dead.
//! 4. A read buffer belongs to one read. The buffer is not reused before the device has finished
//!    with it and no batch uses it any more.

pub(crate) mod counters;
pub(crate) mod format;
pub(crate) mod pages;
pub(crate) mod pending_read;
pub(crate) mod tier;
pub(crate) mod write_queue;
