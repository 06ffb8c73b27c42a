//! Keys in the order in which they came.

use rapidhash::RapidHashMap;
use std::collections::VecDeque;

/// A queue of keys, each in it once, from whose middle any can be taken.
///
/// A key that is taken stays in `order` with a stamp that is no longer its own, and is passed over
/// when its turn comes.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<(u32, u64)>,
    stamps: RapidHashMap<u32, u64>,
    stamp: u64,
}

impl Queue {
    /// Puts a key last, wherever it was.
    pub(super) fn push(&mut self, key: u32) {
        self.stamp += 1;
        self.stamps.insert(key, self.stamp);
        self.order.push_back((key, self.stamp));
        if self.order.len() > 2 * self.stamps.len() + 64 {
            let stamps = &self.stamps;
            self.order.retain(|(key, stamp)| stamps.get(key) == Some(stamp));
        }
    }

    /// Takes the key that has been here longest.
    pub(super) fn pop(&mut self) -> Option<u32> {
        while let Some((key, stamp)) = self.order.pop_front() {
            if self.stamps.get(&key) == Some(&stamp) {
                self.stamps.remove(&key);
                return Some(key);
            }
        }
        None
    }

    /// Takes this key; says whether it was here.
    pub(super) fn remove(&mut self, key: u32) -> bool {
        self.stamps.remove(&key).is_some()
    }
}
