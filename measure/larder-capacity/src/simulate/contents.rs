//! The stored items of a simulated cache, for any eviction policy.

use super::request::{NEVER, Request};
use rapidhash::RapidHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stored item. `mark` contains the eviction policy's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<M> {
    pub(super) size: u64,
    pub(super) expires_ms: u64,
    pub(super) mark: M,
}

/// The stored items by key, and their total size.
#[derive(Debug)]
pub(super) struct Contents<M> {
    entries: RapidHashMap<u32, Entry<M>>,
    used: u64,
    /// Expiry times and keys, including those of items that were removed before their expiry time.
    deadlines: BinaryHeap<Reverse<(u64, u32)>>,
}

impl<M> Contents<M> {
    pub(super) fn new() -> Self {
        Self { entries: RapidHashMap::default(), used: 0, deadlines: BinaryHeap::new() }
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut Entry<M>> {
        self.entries.get_mut(&key)
    }

    pub(super) fn insert(&mut self, request: &Request, mark: M) {
        let (size, expires_ms) = (u64::from(request.size), request.expires_ms());
        self.remove(request.key);
        self.used += size;
        self.entries.insert(request.key, Entry { size, expires_ms, mark });
        if expires_ms != NEVER {
            self.deadlines.push(Reverse((expires_ms, request.key)));
        }
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<Entry<M>> {
        let entry = self.entries.remove(&key)?;
        self.used -= entry.size;
        Some(entry)
    }

    /// Removes and returns an expired item. Returns `None` if no stored item has expired.
    pub(super) fn remove_expired(&mut self, now_ms: u64) -> Option<(u32, Entry<M>)> {
        while let Some(&Reverse((at, key))) = self.deadlines.peek().filter(|due| due.0.0 <= now_ms)
        {
            self.deadlines.pop();
            if self.entries.get(&key).is_some_and(|entry| entry.expires_ms == at) {
                return Some((key, self.remove(key)?));
            }
        }
        None
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }
}
