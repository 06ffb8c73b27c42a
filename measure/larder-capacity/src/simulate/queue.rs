//! A FIFO queue of keys that supports removal of any key.

use rapidhash::RapidHashMap;
use std::collections::VecDeque;

/// A FIFO queue that contains each key at most once and supports removal of any key.
///
/// Removing a key, or moving it to the back, leaves an entry with an outdated stamp in `order`.
/// [`Queue::pop`] skips such entries, and [`Queue::push`] removes them when they outnumber the keys
/// by more than 64.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<(u32, u64)>,
    stamps: RapidHashMap<u32, u64>,
    stamp: u64,
}

impl Queue {
    /// Adds a key at the back, or moves it there.
    pub(super) fn push(&mut self, key: u32) {
        self.stamp += 1;
        self.stamps.insert(key, self.stamp);
        self.order.push_back((key, self.stamp));
        if self.order.len() > 2 * self.stamps.len() + 64 {
            let stamps = &self.stamps;
            self.order.retain(|(key, stamp)| stamps.get(key) == Some(stamp));
        }
    }

    /// Removes and returns the key at the front; `None` if the queue is empty.
    pub(super) fn pop(&mut self) -> Option<u32> {
        while let Some((key, stamp)) = self.order.pop_front() {
            if self.stamps.get(&key) == Some(&stamp) {
                self.stamps.remove(&key);
                return Some(key);
            }
        }
        None
    }

    /// Removes a key. Returns whether the queue contained it.
    pub(super) fn remove(&mut self, key: u32) -> bool {
        self.stamps.remove(&key).is_some()
    }
}
