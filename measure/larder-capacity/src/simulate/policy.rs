//! The eviction policy of a simulated cache.

use super::request::Request;

/// A simulated cache with an eviction policy.
pub trait Policy {
    /// Looks up the key. Returns whether the request was a hit.
    fn look_up(&mut self, request: &Request) -> bool;

    /// Stores the item of the last lookup unless it is too large or the policy rejects it. The
    /// lookup must have missed.
    fn store(&mut self, request: &Request);

    /// Looks up the key, and stores the item after a miss. Returns whether the request was a hit.
    fn request(&mut self, request: &Request) -> bool {
        let hit = self.look_up(request);
        if !hit {
            self.store(request);
        }
        hit
    }

    /// Returns the total size of all stored items in bytes, which never exceeds the capacity.
    fn used(&self) -> u64;
}
