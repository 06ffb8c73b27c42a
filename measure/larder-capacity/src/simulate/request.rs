//! A request to a simulated cache.

use std::num::NonZeroU32;

/// A get, and the set that follows a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Milliseconds since the start of the stream; never decreases within a stream.
    pub now_ms: u64,
    /// Number of the key.
    pub key: u32,
    /// Size of the stored item in bytes of memory.
    pub size: u32,
    /// TTL of the item in seconds; `None` for no expiry.
    pub ttl_secs: Option<NonZeroU32>,
}

impl Request {
    /// Returns the stream time in milliseconds at which an item that this request stores expires.
    #[must_use]
    pub fn expires_ms(&self) -> u64 {
        self.ttl_secs.map_or(NEVER, |secs| self.now_ms + u64::from(secs.get()) * 1000)
    }
}

/// The expiry time of items without a TTL.
pub(super) const NEVER: u64 = u64::MAX;
