//! Larder's cache as a library. It stores keys and values as bytes in a fixed amount of memory, and
//! all threads of a program can share it.
//!
//! ```
//! use larder_cache::{Cache, InsertOptions};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::builder()
//!     .memory(256 << 20)
//!     .on_evict(|evicted| drop(evicted.key.len()))
//!     .build()?;
//!
//! // All clones are the same cache: give one to each thread.
//! let writer = cache.clone();
//! std::thread::spawn(move || writer.insert("user:1", "Ada")).join().unwrap()?;
//!
//! // `get` copies a value, and `read` accesses it without a copy.
//! assert_eq!(cache.get("user:1").as_deref(), Some(&b"Ada"[..]));
//! assert!(cache.read("user:1", |value| value.starts_with(b"A")).unwrap());
//!
//! // One thread makes a missing value, and the others wait for it.
//! let page = cache.get_or_insert_with("page", || {
//!     (String::from("<html>"), InsertOptions::new().ttl(Duration::from_secs(60)))
//! });
//! assert_eq!(page, "<html>");
//! # Ok(())
//! # }
//! ```
//!
//! - **Memory.** Items, index and bookkeeping take no more than [`Builder::memory`], so no weigher
//!   is needed.
//! - **Lookups** neither take a lock nor wait for other threads, except to create a handle. The
//!   cache creates a handle at the first use of each of its 64 slots, and in every call that finds
//!   all slots in use.
//! - **Bytes, not objects.** An insert copies the value into the cache. [`Typed`] encodes and
//!   decodes values.
//! - **Eviction** is S3-FIFO, which keeps items that were used more than once.
//!
//! The guarantees and the costs are in [docs/embedding.md] of the repository.
//!
//! [docs/embedding.md]: https://github.com/larder-cache/larder/blob/main/docs/embedding.md
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod batch;
mod builder;
mod cache;
mod clock;
mod core;
mod insert;
mod listener;
mod maintenance;
mod makers;
mod operations;
mod stats;
mod typed;
mod workers;

pub use batch::Batch;
pub use builder::{BuildError, Builder};
pub use bytes::Bytes;
pub use cache::Cache;
pub use insert::{InsertError, InsertOptions, Insertion, KEY_LEN_MAX, TAG_LEN_MAX, TAGS_MAX};
pub use listener::Evicted;
pub use operations::{CounterError, Iter, Keys, SwapError, SwapOutcome, Ttl, Update, Version};
pub use stats::Stats;
pub use typed::{Codec, DecodeKey, Postcard, Typed, TypedError};
