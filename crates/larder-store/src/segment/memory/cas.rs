//! CAS values. A cache draws each value only once, and each new CAS of an item is above the
//! previous one. There are two exceptions: a client may choose a value that is too high to follow
//! (see `FOLLOWED_END`), and the counter starts over at its end.
//!
//! ```text
//! 63 62      48 47                     0
//! ┌─┬──────────┬────────────────────────┐
//! │0│ epoch    │ counter                │   the epoch of a cache that is not replicated is 0
//! └─┴──────────┴────────────────────────┘
//! ```
//! Handles take blocks of the counter, so that they do not contend for it. If the last CAS of an
//! item is above the rest of a handle's block, the handle takes another block. Blocks are short: if
//! many handles write a key alternately, each write uses at most 32 values. At a million such
//! writes a second the counter lasts for over three months, and at a million other writes a second
//! for nine years. Then it starts over. A new epoch moves the counter to the start of the epoch.
//! Handles still draw the rest of their blocks from the earlier epoch. These values are unique,
//! because no other server drew values in that epoch.

use super::header_page::CasWords;
use crate::segment::sync::Ordering;

/// The number of values that a handle takes at a time.
const BLOCK: u64 = 32;
/// The number of values of an epoch, and the end of epoch 0's values.
const COUNTER_END: u64 = 1 << 48;
/// A drawn value exceeds the item's previous CAS if that CAS is below this bound or below the
/// counter. The counter does not follow a higher CAS, so that a client that chooses one cannot use
/// up the counter.
const FOLLOWED_END: u64 = 1 << 47;

/// A range of CAS values that only this handle draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CasBlock {
    next: u64,
    end: u64,
}

impl CasWords {
    /// Moves the counter to the start of this epoch, unless the counter has already reached it.
    /// Handles draw the rest of their blocks first.
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.next.fetch_max(u64::from(epoch) * COUNTER_END + 1, Ordering::Relaxed);
    }

    /// Raises the floor to `cas` if it is lower. A set that replaces an item without reading it
    /// draws a value above the floor. Ignores a `cas` that a client chose and that is too high to
    /// follow.
    pub(crate) fn raise_floor(&self, cas: u64) {
        let is_followed = cas < FOLLOWED_END || cas < self.next.load(Ordering::Relaxed);
        self.floor.fetch_max(if is_followed { cas } else { 0 }, Ordering::Release);
    }
}

impl CasBlock {
    /// Draws a CAS that differs from `old`. Unless the counter has started over, the CAS is new in
    /// this cache and above `old`. It may be below an `old` that a client chose and that is too
    /// high to follow.
    pub(crate) fn draw(&mut self, words: &CasWords, old: u64) -> u64 {
        // An `old` above the bound is also followed if it is below the counter, because a handle
        // may have drawn it.
        let is_followed = old < FOLLOWED_END || old < words.next.load(Ordering::Relaxed);
        let above = if is_followed { old } else { 0 };
        if self.next == self.end || self.next <= above {
            *self = Self::take(words, above);
        }
        let cas = self.next;
        self.next += 1;
        // A CAS equals `old` if the counter has reached a value that a client chose and that was
        // too high to follow.
        if cas == old { self.draw(words, old) } else { cas }
    }

    /// Makes the last drawn value available again. `before` is the block before the draw. If the
    /// block has not changed since, no value was drawn.
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
            // A client sometimes chooses a higher value.
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
    fn values_chosen_by_clients_stay_inside_the_counter() {
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
            // The rest of a handle's block belongs to an epoch in which no other server drew
            // values.
            let left = handles[0].draw(&words, 0);
            assert!(seen.insert(left) && left >> 48 < u64::from(epoch), "{left:x}");
            // Replace an item of another leader.
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
