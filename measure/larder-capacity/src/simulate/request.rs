//! A request to a simulated cache.

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
pub(super) const NEVER: u64 = u64::MAX;
