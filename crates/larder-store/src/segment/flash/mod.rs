//! The flash tier: items that would be evicted from memory are written to flash, and read from there when
//! they are asked for.
//!
//! ```text
//!  evicted ──copied──▶ write buffer ──full──▶ queue ──written as a block──▶ on flash
//!                      (index words refer to it, as to any other)              (index words refer to flash)
//! ```
//! No index word refers to flash before the write has completed, so a torn write loses nothing but what it
//! replaces: the items of the write buffer are found there until then.
//!
//! This folder has the state of the tier, which all handles share. `flash_read` reads items, and `flash_write`
//! writes them and empties pages.
//!
//! | file | subject |
//! |---|---|
//! | `tier` | the state of the tier: settings, reads and writes under way, failures |
//! | `pages` | the pages, in the region, and the lists of them |
//! | `pending_read` | a read, as those see it that wait for it or use it |
//! | `format` | items as they lie on flash |
//! | `write_queue` | write buffers that wait to be written |
//! | `counters` | the counters of the tier |
//!
//! # Invariants
//! 1. An index word that refers to flash refers to an item that was written completely, in a page that is
//!    not written to again before all words into it were removed, and all reads of it have ended.
//! 2. A page has a sequence like a segment, drawn when it is opened. What is written to it is of segments
//!    that are not below the flush floor when their words change, and the page is not below it when it is
//!    chosen: so a flush invalidates pages as it does segments.
//! 3. A write buffer belongs to the handle that fills it, then to the queue, then to the thread that
//!    writes it. Its items are not changed where they are, but for what readers mark in their headers.
//! 4. A buffer belongs to one read, and is not used for another before the device is done with it and no
//!    batch uses it any more.

pub(crate) mod counters;
pub(crate) mod format;
pub(crate) mod pages;
pub(crate) mod pending_read;
pub(crate) mod tier;
pub(crate) mod write_queue;
