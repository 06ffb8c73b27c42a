//! An LRU stack that reports the total length of the items that were used after a given item.

use crate::{Expiry, Seconds};
use rapidhash::fast::RandomState;
use std::collections::HashMap;

/// The size and the expiry of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The length in bytes, overhead included.
    pub(crate) len: u64,
    pub(crate) expiry: Expiry,
}

/// An LRU stack of items, identified by key hash.
#[derive(Debug)]
pub(crate) struct Stack {
    items: HashMap<u64, (usize, Extent), RandomState>,
    /// Hashes, from the least recently to the most recently used item; [`REMOVED`] for a removed
    /// item.
    positions: Vec<u64>,
    /// The length in bytes of the item at each position; 0 at a position without an item.
    lens: Sums,
    /// The lowest position that may have an item.
    oldest: usize,
    bytes: u64,
}

/// The content of a removed item's position. It is not the hash of a sampled key.
const REMOVED: u64 = u64::MAX;

impl Stack {
    /// Returns an empty stack with this many positions. The stack is compacted when all positions
    /// are used, so it should have far more positions than items.
    pub(crate) fn new(positions: usize) -> Self {
        Self {
            items: HashMap::default(),
            positions: Vec::new(),
            lens: Sums(vec![0; positions + 1]),
            oldest: 0,
            bytes: 0,
        }
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the total length of all items in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Moves an item to the top. Returns its extent, and the length in bytes of the items that were
    /// above it. Returns `None` if there is no item, or if it has expired. Removes an expired item.
    pub(crate) fn touch(&mut self, hash: u64, now: Seconds) -> Option<(Extent, u64)> {
        let above = |position| self.bytes - self.lens.up_to(position);
        let above = self.items.get(&hash).map(|&(position, _)| above(position))?;
        let extent = self.remove(hash).filter(|extent| !extent.expiry.is_past(now))?;
        self.push(hash, extent);
        Some((extent, above))
    }

    /// Puts an item on top. Replaces an item with the same hash.
    pub(crate) fn put(&mut self, hash: u64, extent: Extent) {
        self.remove(hash);
        self.push(hash, extent);
    }

    /// Removes an item, and returns its extent. Returns `None` if there is no item.
    pub(crate) fn remove(&mut self, hash: u64) -> Option<Extent> {
        let (position, extent) = self.items.remove(&hash)?;
        self.positions[position] = REMOVED;
        self.lens.add(position, extent.len.wrapping_neg());
        self.bytes -= extent.len;
        Some(extent)
    }

    /// Removes the least recently used item.
    pub(crate) fn remove_oldest(&mut self) {
        while let Some(&hash) = self.positions.get(self.oldest) {
            self.oldest += 1;
            if self.remove(hash).is_some() {
                return;
            }
        }
    }

    /// Removes all items whose hash is not below `threshold`.
    pub(crate) fn retain_below(&mut self, threshold: u64) {
        let kept: Vec<_> = self.in_order().filter(|&(hash, _)| hash < threshold).collect();
        self.refill(kept);
    }

    /// Removes all items.
    pub(crate) fn clear(&mut self) {
        self.refill(Vec::new());
    }

    fn push(&mut self, hash: u64, extent: Extent) {
        if self.positions.len() + 1 == self.lens.0.len() {
            let all = self.in_order().collect();
            self.refill(all);
        }
        let position = self.positions.len();
        self.positions.push(hash);
        self.items.insert(hash, (position, extent));
        self.lens.add(position, extent.len);
        self.bytes += extent.len;
    }

    fn in_order(&self) -> impl Iterator<Item = (u64, Extent)> {
        self.positions.iter().filter_map(|&hash| Some((hash, self.items.get(&hash)?.1)))
    }

    /// Replaces all items with `items`, least recently used first. There must be fewer items than
    /// positions.
    fn refill(&mut self, items: Vec<(u64, Extent)>) {
        self.items.clear();
        self.positions.clear();
        self.lens.0.fill(0);
        (self.oldest, self.bytes) = (0, 0);
        items.into_iter().for_each(|(hash, extent)| self.push(hash, extent));
    }
}

/// A Fenwick tree: stores a number for each position, and computes the sum up to any position. Its
/// indices start at 1.
#[derive(Debug)]
struct Sums(Vec<u64>);

impl Sums {
    /// Adds `n` to the number at a position. The addition wraps, so a negated `n` subtracts.
    fn add(&mut self, position: usize, n: u64) {
        let mut i = position + 1;
        while let Some(sum) = self.0.get_mut(i) {
            *sum = sum.wrapping_add(n);
            i += i & i.wrapping_neg();
        }
    }

    /// Returns the sum of all numbers up to and including a position.
    fn up_to(&self, position: usize) -> u64 {
        let (mut i, mut sum) = (position + 1, 0_u64);
        while i > 0 {
            sum = sum.wrapping_add(self.0[i]);
            i &= i - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Seconds = Seconds(1000);

    fn extent(len: u64) -> Extent {
        Extent { len, expiry: Expiry::Never }
    }

    #[test]
    fn an_expired_item_is_removed() {
        let mut stack = Stack::new(8);
        stack.put(1, Extent { len: 10, expiry: Expiry::At(NOW) });
        assert_eq!(stack.touch(1, Seconds(999)), Some((stack.items[&1].1, 0)));
        assert_eq!((stack.touch(1, NOW), stack.len(), stack.bytes()), (None, 0, 0));
    }

    proptest! {
        /// Compares the stack with a list, most recent first.
        #[test]
        fn the_stack_equals_a_list_in_order_of_use(
            steps in prop::collection::vec((0..5_u8, 0..12_u64, 1..100_u64), 1..300),
        ) {
            let (mut stack, mut list) = (Stack::new(32), Vec::<(u64, u64)>::new());
            for (step, hash, len) in steps {
                let at = list.iter().position(|&(listed, _)| listed == hash);
                match step {
                    0 => {
                        stack.put(hash, extent(len));
                        at.map(|at| list.remove(at));
                        list.insert(0, (hash, len));
                    }
                    1 => {
                        stack.remove(hash);
                        at.map(|at| list.remove(at));
                    }
                    2 if len < 10 => {
                        stack.retain_below(hash);
                        list.retain(|&(listed, _)| listed < hash);
                    }
                    3 if len < 30 => {
                        stack.remove_oldest();
                        list.pop();
                    }
                    _ => {
                        let seen = stack.touch(hash, NOW);
                        let above = |at| list[..at].iter().map(|&(_, len)| len).sum::<u64>();
                        prop_assert_eq!(seen, at.map(|at| (extent(list[at].1), above(at))));
                        if let Some(at) = at {
                            list[..=at].rotate_right(1);
                        }
                    }
                }
                prop_assert_eq!(stack.len(), list.len());
                prop_assert_eq!(stack.bytes(), list.iter().map(|&(_, len)| len).sum::<u64>());
            }
        }
    }
}
