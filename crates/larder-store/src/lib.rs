//! The cache itself: the [`Engine`] trait and the engines behind it. Usable alone, as an embedded
//! cache.

mod engine;
pub mod segment;

pub use engine::*;
