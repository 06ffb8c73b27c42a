//! The eviction policy of a simulated cache.

use super::request::Request;

/// A simulated cache with an eviction policy.
pub trait Policy {
    /// Looks the key up, and stores it on a miss. Returns whether it was a hit.
    fn request(&mut self, request: &Request) -> bool;

    /// Bytes of all stored items, never more than the capacity.
    fn used(&self) -> u64;
}
