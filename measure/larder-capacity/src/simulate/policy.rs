//! The eviction policy of a simulated cache.

use super::request::Request;

/// A simulated cache with an eviction policy.
pub trait Policy {
    /// Looks up the key. After a miss, stores it unless it is too large or the policy does not want
    /// it. Returns whether the request was a hit.
    fn request(&mut self, request: &Request) -> bool;

    /// Total size of all stored items in bytes, at most the capacity.
    fn used(&self) -> u64;
}
