//! CAS values: unique in the cache, and higher than the last one of the item that they are for.
//!
//! ```text
//! 63 62      48 47                     0
//! ┌─┬──────────┬────────────────────────┐
//! │0│ epoch    │ counter                │   the epoch of a cache that is not replicated is 0
//! └─┴──────────┴────────────────────────┘
//! ```
//! Handles take blocks of the counter, so that they do not meet at it; where the last CAS of an item
//! is above what is left of a handle's block, the handle takes another one. Blocks are short, so that
//! a key that many handles write in turn uses the counter up no faster than 32 a write: at a million
//! such writes a second it lasts for over three months, and at a million others for nine years. Then
//! it starts over. A new epoch moves the counter to its beginning; what is left of a handle's block is of an epoch in
//! which nobody else drew.

use super::header_page::CasWords;
use crate::segment::sync::Ordering;

/// Values that a handle takes at a time.
const BLOCK: u64 = 32;
/// The counter of epoch 0 is below this, and those of others are as long.
const COUNTER_END: u64 = 1 << 48;
/// Values that a client chose are followed up to here, lest nothing higher be left; beyond, as far as
/// the counter has come by itself.
const FOLLOWED_END: u64 = 1 << 47;

/// CAS values that no other handle will use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CasBlock {
    next: u64,
    end: u64,
}

impl CasWords {
    /// Has values be drawn in this epoch from here on.
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.next.fetch_max(u64::from(epoch) * COUNTER_END + 1, Ordering::Relaxed);
    }

    /// Has sets that replace an item without reading it draw values above `cas`, as far as values are
    /// followed that clients choose.
    pub(crate) fn raise_floor(&self, cas: u64) {
        let is_followed = cas < FOLLOWED_END || cas < self.next.load(Ordering::Relaxed);
        self.floor.fetch_max(if is_followed { cas } else { 0 }, Ordering::Release);
    }
}

impl CasBlock {
    /// A CAS that no item has had, other than `old` and, unless a client chose that very high, above
    /// it.
    pub(crate) fn draw(&mut self, words: &CasWords, old: u64) -> u64 {
        // Above the end a value is followed too that another handle may have drawn.
        let is_followed = old < FOLLOWED_END || old < words.next.load(Ordering::Relaxed);
        let above = if is_followed { old } else { 0 };
        if self.next == self.end || self.next <= above {
            *self = Self::take(words, above);
        }
        let cas = self.next;
        self.next += 1;
        // A client may have chosen a value that is not followed and that the counter has reached.
        if cas == old { self.draw(words, old) } else { cas }
    }

    /// The last value that was drawn, if one was since it was as `before`, is not used.
    pub(crate) fn put_back_to(&mut self, before: Self) {
        if *self != before {
            self.next -= 1;
        }
    }

    fn take(words: &CasWords, above: u64) -> Self {
        let start_of = |next: u64| {
            let epoch_start = next & !(COUNTER_END - 1);
            let start = next.max(above + 1);
            if start + BLOCK > epoch_start + COUNTER_END { epoch_start + 1 } else { start }
        };
        let taken = words.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            Some(start_of(next) + BLOCK)
        });
        let (Ok(next) | Err(next)) = taken;
        let start = start_of(next);
        Self { next: start, end: start + BLOCK }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::segment::sync::AtomicU64;

    fn words(next: u64) -> CasWords {
        CasWords { next: AtomicU64::new(next), floor: AtomicU64::new(0) }
    }

    #[test]
    fn values_are_unique_and_above_the_last_one() {
        let words = words(1);
        let mut handles = [CasBlock::default(); 2];
        let mut seen = std::collections::HashSet::new();
        let mut old = 0;
        for i in 0..10_000 {
            // A client runs ahead now and then.
            old = if i % 100 == 99 { old + 1000 } else { old };
            let cas = handles[i % 2].draw(&words, old);
            assert!(cas > old && seen.insert(cas), "{cas} after {old}");
            old = cas;
        }
    }

    #[test]
    fn two_handles_in_turn_use_no_more_than_a_block_for_each_write() {
        let words = words(1);
        let mut handles = [CasBlock::default(); 2];
        let last = (0..1000).fold(0, |old, i| handles[i % 2].draw(&words, old));
        assert!(last <= 1000 * BLOCK + BLOCK, "{last}");
    }

    #[test]
    fn what_clients_choose_stays_inside_the_counter() {
        let words = words(1);
        let mut handle = CasBlock::default();
        for old in [FOLLOWED_END - 1, FOLLOWED_END, COUNTER_END - 1, 1 << 62, u64::MAX] {
            let cas = handle.draw(&words, old);
            assert!(cas != old && (1..COUNTER_END).contains(&cas), "{cas} after {old}");
            assert!(old >= FOLLOWED_END || cas > old);
        }
    }

    #[test]
    fn another_epoch_has_other_values() {
        let words = words(COUNTER_END - BLOCK - 3);
        let mut handles = [CasBlock::default(); 2];
        let (mut old, mut seen) = (handles[0].draw(&words, 0), std::collections::HashSet::new());
        for epoch in [1, 2, 32_767] {
            words.set_epoch(epoch);
            words.set_epoch(epoch - 1);
            // What one handle has left of its block is of an epoch in which nobody else drew.
            let left = handles[0].draw(&words, 0);
            assert!(seen.insert(left) && left >> 48 < u64::from(epoch), "{left:x}");
            // An item of another leader is replaced.
            old = old.max((u64::from(epoch) << 48) - 5);
            for i in 0..1000 {
                let cas = handles[i % 2].draw(&words, old);
                assert!(cas > old && cas >> 48 == u64::from(epoch), "{cas:x} after {old:x}");
                assert!(seen.insert(cas));
                old = cas;
            }
            // A client may choose anything.
            let cas = handles[1].draw(&words, u64::MAX);
            assert!(seen.insert(cas) && cas >> 48 == u64::from(epoch));
            handles[0] = CasBlock::take(&words, 0);
        }
        words.next.store((32_768 << 48) - 40, Ordering::Relaxed);
        for _ in 0..100 {
            let cas = handles[1].draw(&words, old);
            assert!(cas != old && cas >> 48 == 32_767, "the counter starts over in its epoch");
            old = cas;
        }
    }

    #[test]
    fn the_counter_starts_over_at_its_end() {
        let words = words(COUNTER_END - BLOCK - 3);
        let mut handle = CasBlock::default();
        let mut old = COUNTER_END - BLOCK - 4;
        for _ in 0..100 {
            let cas = handle.draw(&words, old);
            assert!(cas != old && (1..COUNTER_END).contains(&cas));
            old = cas;
        }
    }
}
