//! Simulated caches: what a policy would do with a stream of requests, without a server.
//!
//! Every cache looks aside: a request for a key it does not hold is a miss, after which the key is
//! stored. It holds at most so many bytes, and lets go of what has expired at once. Time is an
//! argument.

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
    /// Milliseconds from the start of the stream; never less than the request's before.
    pub now_ms: u64,
    /// Whose.
    pub key: u32,
    /// Bytes that it takes while it is stored.
    pub size: u32,
    /// Seconds that it lives after it was stored; none is for ever.
    pub ttl_secs: Option<NonZeroU32>,
}

impl Request {
    /// When what is stored now expires, in the stream's milliseconds: from then on it is gone.
    #[must_use]
    pub fn expires_ms(&self) -> u64 {
        self.ttl_secs.map_or(NEVER, |secs| self.now_ms + u64::from(secs.get()) * 1000)
    }
}

/// Later than all times.
const NEVER: u64 = u64::MAX;

/// A cache of limited size.
pub trait Policy {
    /// Looks the key up, stores it if it is not there, and says whether it was.
    fn request(&mut self, request: &Request) -> bool;

    /// Bytes held: never more than the capacity.
    fn used(&self) -> u64;
}
