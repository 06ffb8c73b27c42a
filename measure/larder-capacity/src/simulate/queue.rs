//! A FIFO queue of keys with removal from the middle.

use rapidhash::RapidHashMap;
use std::collections::VecDeque;

/// A FIFO queue that contains each key at most once, and from which any key can be removed.
///
/// A removed key stays in `order` with an outdated stamp, and is skipped when it reaches the front.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<(u32, u64)>,
    stamps: RapidHashMap<u32, u64>,
    stamp: u64,
}

impl Queue {
    /// Moves or adds a key to the back.
    pub(super) fn push(&mut self, key: u32) {
        self.stamp += 1;
        self.stamps.insert(key, self.stamp);
        self.order.push_back((key, self.stamp));
        if self.order.len() > 2 * self.stamps.len() + 64 {
            let stamps = &self.stamps;
            self.order.retain(|(key, stamp)| stamps.get(key) == Some(stamp));
        }
    }

    /// Removes the key at the front.
    pub(super) fn pop(&mut self) -> Option<u32> {
        while let Some((key, stamp)) = self.order.pop_front() {
            if self.stamps.get(&key) == Some(&stamp) {
                self.stamps.remove(&key);
                return Some(key);
            }
        }
        None
    }

    /// Removes this key; returns whether it was in the queue.
    pub(super) fn remove(&mut self, key: u32) -> bool {
        self.stamps.remove(&key).is_some()
    }
}
