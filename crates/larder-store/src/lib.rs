//! The cache itself: the [`Engine`] trait and the engines behind it. Usable alone, as an embedded
//! cache.
//!
//! | engine | evicts | what it is for |
//! |---|---|---|
//! | [`segment`] | S3-FIFO | the default: one region, exact limit, reads without locks |
//! | [`moka`] | LRU or TinyLFU | a cache as it is usually built in Rust |
//! | [`dashmap`] | no | a plain concurrent map: refuses when it is full |
//! | [`delayed`] | as another | any of them, answering late at random: for tests |

#[macro_use]
mod strict;

pub mod cache;
pub mod dashmap;
pub mod delayed;
mod engine;
pub mod eviction;
pub mod map_engine;
pub mod moka;
pub mod segment;

pub use engine::*;
