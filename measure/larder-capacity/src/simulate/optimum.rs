//! A simulated cache with knowledge of all future requests.

use super::contents::Contents;
use super::policy::Policy;
use super::request::Request;
use rapidhash::RapidHashMap;
use std::collections::BinaryHeap;

/// Bélády's MIN: evicts the item whose next request is furthest in the future. The evicted item can
/// be that of the current request.
///
/// If all items have the same size and none expires, no cache has fewer misses. Otherwise, a better
/// policy can exist: see [`super::hits_at_most`].
#[derive(Debug)]
pub struct Optimum<'s> {
    capacity: u64,
    requests: &'s [Request],
    /// For each request, the index of the next request for the same key; [`NONE`] if no such
    /// request follows.
    next: Vec<u32>,
    position: usize,
    /// The stored items. The mark of an item is the index of the next request for its key.
    contents: Contents<u32>,
    /// For each stored item, the index of its next request and its key, the largest index first.
    /// The heap can contain outdated entries.
    order: BinaryHeap<(u32, u32)>,
}

const NONE: u32 = u32::MAX;

impl<'s> Optimum<'s> {
    /// Returns an empty cache of `capacity` bytes. The caller must then make exactly these requests
    /// in this order; only their sizes may differ. `requests` has at most 2^32 − 1 elements.
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

    /// Returns whether the request with the index `next` is before the time `expires_ms`. Returns
    /// false for [`NONE`], which stands for no request.
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
    fn look_up(&mut self, request: &Request) -> bool {
        debug_assert_eq!(self.requests[self.position].key, request.key);
        let next = self.next[self.position];
        self.position += 1;
        let Some(entry) = self.contents.get_mut(request.key) else { return false };
        let expires_ms = entry.expires_ms;
        entry.mark = next;
        if self.is_requested_before(next, expires_ms) {
            self.order.push((next, request.key));
        } else {
            self.contents.remove(request.key);
        }
        true
    }

    fn store(&mut self, request: &Request) {
        let next = self.next[self.position - 1];
        let is_wanted = self.is_requested_before(next, request.expires_ms());
        if is_wanted && u64::from(request.size) <= self.capacity {
            self.contents.insert(request, next);
            self.order.push((next, request.key));
            self.shrink();
        }
    }

    fn used(&self) -> u64 {
        self.contents.used()
    }
}
