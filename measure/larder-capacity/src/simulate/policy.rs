//! The eviction policy of a simulated cache.

use super::request::Request;

/// A simulated cache with an eviction policy.
pub trait Policy {
    /// Looks up the key and stores it after a miss. Returns whether the request was a hit.
    fn request(&mut self, request: &Request) -> bool;

    /// Total size of all stored items in bytes, at most the capacity.
    fn used(&self) -> u64;
}
