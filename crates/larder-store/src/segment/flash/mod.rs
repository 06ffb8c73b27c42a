//! The flash tier: items that would be evicted from memory are written to flash, and read from there when
//! they are asked for.
//!
//! ```text
//!  evicted ──copied──▶ leaving segment ──full──▶ queue ──written as a block──▶ landed
//!                      (index words refer to it, as to any other)              (index words refer to flash)
//! ```
//! No index word refers to flash before the write has completed, so a torn write loses nothing but what it
//! replaces: the items of the leaving segment are found there until then.
//!
//! | file | what it knows |
//! |---|---|
//! | `reclaim` | emptying pages, when few are free |
//! | `write`, `leaving_value` | the threads that write blocks, and have index words refer to them; writing a large item |
//! | `find` | items on flash in look-ups and updates |
//! | `fetch` | reads: beginning, delivering |
//! | `walk` | items on flash in walks |
//! | `leave` | copying items to leaving segments |
//! | `returning`, `copy` | items in memory that are on flash, too: evicting them; where they are |
//! | `tier` | what all handles share |
//! | `fetching`, `read`, `reading` | the reads of a handle; one read; a read as others see it |
//! | `large` | the value of a large item that is read |
//! | `buffers`, `queue`, `counts` | where reads go to; segments that wait to be written; counters |
//! | `pages`, `format` | the pages; items as they lie there |
//!
//! # Invariants
//! 1. An index word that refers to flash refers to an item that was written completely, in a page that is
//!    not written to again before all words into it were removed, and all reads of it have ended.
//! 2. A page has a sequence like a segment, drawn when it is opened. What is written to it is of segments
//!    that are not below the flush floor when their words change, and the page is not below it when it is
//!    chosen: so a flush invalidates pages as it does segments.
//! 3. A leaving segment belongs to the handle that fills it, then to the queue, then to the thread that
//!    writes it. Its items are not changed where they are, but for what readers mark in their headers.
//! 4. A buffer belongs to one read, and is not used for another before the device is done with it and no
//!    batch uses it any more.

pub(super) mod buffers;
pub(super) mod copy;
pub(super) mod counts;
pub(super) mod fetch;
pub(super) mod fetching;
pub(super) mod find;
pub(super) mod format;
pub(super) mod large;
pub(super) mod leave;
mod leaving_value;
pub(super) mod pages;
pub(super) mod queue;
pub(super) mod read;
pub(super) mod reading;
pub(super) mod reclaim;
mod returning;
pub(super) mod tier;
pub(super) mod walk;
pub(super) mod write;
