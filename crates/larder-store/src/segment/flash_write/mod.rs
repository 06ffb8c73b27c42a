//! Writing items to flash, and emptying pages.
//!
//! | file | subject |
//! |---|---|
//! | `block_writer` | the threads that write full buffers to flash, and then change the index words |
//! | `large_write` | writing a large item |
//! | `page_reclaim` | emptying failing and unwanted pages, and other pages when few are free |
//! | `demotion` | copying evicted items to write buffers |
//! | `copy_reuse` | evicting items that are already on flash |
//!
//! # Invariants
//! - No index word refers to flash before the write has completed.
//! - A write buffer belongs to the handle that fills it, then to the queue, then to the thread that
//!   writes it.

pub(crate) mod block_writer;
pub(crate) mod copy_reuse;
pub(crate) mod demotion;
pub(crate) mod large_write;
pub(crate) mod page_reclaim;
