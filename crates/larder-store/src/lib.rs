//! The cache itself: the [`Engine`] trait and the engines that implement it. The crate can be used
//! alone, as an embedded cache: see [`segment::Cache`].
//!
//! | engine | evicts | what it is for |
//! |---|---|---|
//! | [`segment`] | S3-FIFO | the default: one region of memory, an exact limit, reads without locks |
//! | `moka` | LRU or TinyLFU | a cache as it is usually built in Rust |
//! | `dashmap` | no | a concurrent map: it refuses stores when it is full |
//! | [`delayed`] | as the engine behind it | for tests: any engine, with answers that are late at random |
//!
//! [`erased::Cache`] hides which of them a cache has. `moka` and `dashmap` are features of that name, on by default.

#[macro_use]
mod strict;

pub mod cache;
#[cfg(feature = "dashmap")]
pub mod dashmap;
pub mod delayed;
mod engine;
pub mod erased;
pub mod eviction;
mod flash;
pub mod journal;
#[cfg(any(feature = "dashmap", feature = "moka"))]
pub mod map_engine;
#[cfg(feature = "moka")]
pub mod moka;
pub mod segment;

pub use engine::*;
pub use flash::*;
