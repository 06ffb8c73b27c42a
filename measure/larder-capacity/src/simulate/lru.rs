//! A simulated LRU cache.

use super::contents::Contents;
use super::policy::Policy;
use super::queue::Queue;
use super::request::Request;

/// A cache that evicts the least recently used item.
#[derive(Debug)]
pub struct Lru {
    capacity: u64,
    contents: Contents<()>,
    queue: Queue,
}

impl Lru {
    /// Returns an empty cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, contents: Contents::new(), queue: Queue::default() }
    }
}

impl Policy for Lru {
    fn look_up(&mut self, request: &Request) -> bool {
        while let Some((key, _)) = self.contents.remove_expired(request.now_ms) {
            self.queue.remove(key);
        }
        let hit = self.contents.get_mut(request.key).is_some();
        if hit {
            self.queue.push(request.key);
        }
        hit
    }

    fn store(&mut self, request: &Request) {
        if u64::from(request.size) > self.capacity {
            return;
        }
        self.contents.insert(request, ());
        self.queue.push(request.key);
        while self.used() > self.capacity {
            let Some(oldest) = self.queue.pop() else { break };
            self.contents.remove(oldest);
        }
    }

    fn used(&self) -> u64 {
        self.contents.used()
    }
}
