//! The best that a cache could do that knows the future.

use super::contents::Contents;
use super::{Policy, Request};
use rapidhash::RapidHashMap;
use std::collections::BinaryHeap;

/// Bélády's MIN: drops what is asked for again last, the newcomer among them.
///
/// No cache has fewer misses if all items have one size and none expires. With sizes that differ it
/// is a good cache and no longer the best one: see [`super::hits_at_most`].
#[derive(Debug)]
pub struct Optimum<'s> {
    capacity: u64,
    requests: &'s [Request],
    /// For each request, the next one for the same key.
    next: Vec<u32>,
    position: usize,
    /// Marked with their next request.
    contents: Contents<u32>,
    /// The next requests of what is held. Those that have come, or are of dropped items, are still
    /// in here.
    order: BinaryHeap<(u32, u32)>,
}

const NONE: u32 = u32::MAX;

impl<'s> Optimum<'s> {
    /// An empty cache of so many bytes, which is going to be asked for exactly these keys at these
    /// times, though perhaps with other sizes. At most 2^32 − 1 requests.
    #[must_use]
    pub fn new(capacity: u64, requests: &'s [Request]) -> Self {
        Self {
            capacity,
            requests,
            next: next_requests(requests),
            position: 0,
            contents: Contents::new(),
            order: BinaryHeap::new(),
        }
    }

    /// Whether an item that expires then is asked for before that.
    fn is_requested_before(&self, next: u32, expires_ms: u64) -> bool {
        next != NONE && self.requests[next as usize].now_ms < expires_ms
    }

    fn shrink(&mut self) {
        while self.contents.used() > self.capacity {
            let Some((next, key)) = self.order.pop() else { return };
            if self.contents.get_mut(key).is_some_and(|entry| entry.mark == next) {
                self.contents.remove(key);
            }
        }
    }
}

fn next_requests(requests: &[Request]) -> Vec<u32> {
    let mut next = vec![NONE; requests.len()];
    let mut seen: RapidHashMap<u32, u32> = RapidHashMap::default();
    for (index, request) in (0..NONE).zip(requests).rev() {
        if let Some(later) = seen.insert(request.key, index) {
            next[index as usize] = later;
        }
    }
    next
}

impl Policy for Optimum<'_> {
    fn request(&mut self, request: &Request) -> bool {
        debug_assert_eq!(self.requests[self.position].key, request.key);
        let next = self.next[self.position];
        self.position += 1;
        let held = self.contents.get_mut(request.key).map(|entry| entry.expires_ms);
        if !self.is_requested_before(next, held.unwrap_or(request.expires_ms())) {
            return self.contents.remove(request.key).is_some();
        }
        match self.contents.get_mut(request.key) {
            Some(entry) => entry.mark = next,
            None if u64::from(request.size) > self.capacity => return false,
            None => self.contents.insert(request, next),
        }
        self.order.push((next, request.key));
        self.shrink();
        held.is_some()
    }

    fn used(&self) -> u64 {
        self.contents.used()
    }
}
