//! The [`Engine`] trait and the engines that implement it. The crate can be used alone, as an
//! embedded cache: see [`segment::Cache`].
//!
//! | engine | evicts | purpose |
//! |---|---|---|
//! | [`segment`] | S3-FIFO | the default: one region of memory, an exact limit, reads without locks |
//! | `moka` | LRU or TinyLFU | the usual cache of Rust programs |
//! | `dashmap` | no | a concurrent map: refuses stores when it is full |
//! | [`delayed`] | as the inner engine | for tests: any engine, with random delays of its results |
//!
//! [`erased::Cache`] hides the engine of a cache. The features `moka` and `dashmap` enable these
//! engines. Both features are on by default.

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
