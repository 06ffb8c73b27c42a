//! The eviction policy of a simulated cache.

use super::request::Request;

/// A simulated cache with an eviction policy.
pub trait Policy {
    /// Looks up the key. Returns whether the request was a hit.
    fn look_up(&mut self, request: &Request) -> bool;

    /// Stores the key of the last lookup, which missed, unless it is too large or the policy does not
    /// want it.
    fn store(&mut self, request: &Request);

    /// Looks up the key, and after a miss stores it. Returns whether the request was a hit.
    fn request(&mut self, request: &Request) -> bool {
        let hit = self.look_up(request);
        if !hit {
            self.store(request);
        }
        hit
    }

    /// Total size of all stored items in bytes, at most the capacity.
    fn used(&self) -> u64;
}
