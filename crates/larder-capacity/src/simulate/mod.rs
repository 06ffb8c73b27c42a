//! Simulated caches: the hits and misses of an eviction policy, without a server.
//!
//! Every cache is look-aside: a request for a key that it does not hold is a miss, after which the
//! key is stored. A cache holds at most its capacity in bytes and removes expired items at once. Time
//! is an argument.

mod bound;
mod contents;
mod ghost_table;
mod lru;
mod optimum;
mod queue;
mod s3fifo;

pub use bound::hits_at_most;
pub use lru::Lru;
pub use optimum::Optimum;
pub use s3fifo::{S3Fifo, Settings};

use std::num::NonZeroU32;

/// One get, and the set that follows if it misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Milliseconds since the start of the stream, never less than those of the request before.
    pub now_ms: u64,
    /// Number of the key.
    pub key: u32,
    /// Bytes of memory that the item takes while it is stored.
    pub size: u32,
    /// TTL in seconds from when the item is stored; none is no expiry.
    pub ttl_secs: Option<NonZeroU32>,
}

impl Request {
    /// The stream time in milliseconds from which an item stored by this request is expired.
    #[must_use]
    pub fn expires_ms(&self) -> u64 {
        self.ttl_secs.map_or(NEVER, |secs| self.now_ms + u64::from(secs.get()) * 1000)
    }
}

/// The expiry of items without a TTL.
const NEVER: u64 = u64::MAX;

/// A simulated cache with an eviction policy.
pub trait Policy {
    /// Looks the key up, and stores it on a miss. Returns whether it was a hit.
    fn request(&mut self, request: &Request) -> bool;

    /// Bytes of all stored items, never more than the capacity.
    fn used(&self) -> u64;
}
