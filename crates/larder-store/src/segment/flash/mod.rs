//! The flash tier: the cache writes an item to flash when it would otherwise evict the item from
//! memory, and reads it back when a request needs it.
//!
//! ```text
//!  evicted ──copied──▶ write buffer ──full──▶ queue ──written as a block──▶ on flash
//!                      (index words refer to it, as to any other)              (index words refer to flash)
//! ```
//! No index word refers to flash before the write has completed: until then lookups find the items
//! in the write buffer. So a torn write loses no item that lookups could find on flash. It destroys
//! only the earlier content of the block, to which no index word refers any more.
//!
//! This folder contains the state of the tier, which all handles share. `flash_read` reads items.
//! `flash_write` writes them and reclaims pages.
//!
//! | file | subject |
//! |---|---|
//! | `tier` | the state of the tier: settings, reads and writes under way, failures |
//! | `pages` | the state of each page in the region, and the lists of pages |
//! | `pending_read` | the interface of a read, for requests that wait for it or use its item |
//! | `format` | the format of items on flash |
//! | `write_queue` | the queue of write buffers that are waiting to be written |
//! | `counters` | the counters of the tier |
//!
//! # Invariants
//! 1. An index word that refers to flash refers to an item that was written completely. A page is
//!    not overwritten until the index words that refer to it have been removed and all reads from
//!    it have ended. The removal may miss a word. A lookup through such a word finds nothing,
//!    because a later use of the page has another sequence, which the checksums of its items cover.
//! 2. Like a segment, a page gets a sequence when it is opened, so a flush invalidates pages and
//!    segments alike. A write goes only to a page at or above the flush floor. After the write, an
//!    index word is changed to refer to flash only if the segment of its item is at or above the
//!    floor, too.
//! 3. A write buffer belongs to the handle that fills it, then to the queue, then to the thread
//!    that writes it. Its items do not change in place, except for marks in their headers: readers
//!    note accesses, and writers mark removed items dead.
//! 4. A read buffer belongs to one read. The buffer is reused only after the device has finished
//!    with it and no batch uses it any more.

pub(crate) mod counters;
pub(crate) mod format;
pub(crate) mod pages;
pub(crate) mod pending_read;
pub(crate) mod tier;
pub(crate) mod write_queue;
