//! CAS values. A cache draws each value only once, and each new CAS of an item is above the
//! previous one. There are two exceptions. First, the counter does not follow every value that a
//! client chooses (see the table). If a set replaces an item on flash without reading it, the new
//! CAS may equal such a chosen value. Second, the counter of a standalone cache starts over at its
//! end.
//!
//! Handles reserve blocks of values, so that they do not contend for the counter. If the last CAS
//! of an item is above the rest of a handle's block, the handle takes another block.
//!
//! | | standalone cache | cache of a group, after [`CasLimit::set`] |
//! |---|---|---|
//! | values | 1 to below 2^48, then from 1 again | below the end of the range; then draws fail |
//! | a block | 32 values | 8 values, because clients may keep only 32 bits |
//! | a CAS that a client has chosen above the counter | followed below 2^47 | never followed, because it might be above the end |
//!
//! Blocks are short, because each write uses a whole block if many handles write a key alternately.
//! At a million such writes a second the counter of a standalone cache lasts for over three months,
//! and at a million other writes a second for nine years.
//!
//! When a range starts above the counter, handles drop the rest of their blocks: items that migrate
//! from another group to this group may have a higher CAS.

use super::header_page::CasWords;
use crate::segment::sync::{AtomicU64, Mutex, Ordering};
use std::sync::PoisonError;

/// The number of values that a handle of a standalone cache takes at a time.
const BLOCK: u64 = 32;
/// The number of CAS values that a handle takes at a time in a cache with a [`CasLimit`].
const LIMITED_BLOCK: u64 = 8;
/// The exclusive upper bound of a standalone cache's CAS values.
const COUNTER_END: u64 = 1 << 48;
/// A drawn value exceeds the item's previous CAS if that CAS is below this bound or below the
/// counter. The counter does not follow a higher CAS, so that a client that chooses such a CAS
/// cannot use up the counter.
const FOLLOWED_END: u64 = 1 << 47;

/// A range of CAS values that only this handle draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CasBlock {
    next: u64,
    end: u64,
}

/// The limit on the values that a cache may draw. It belongs to the process, not to the region: the
/// next process that uses the region starts without a limit.
#[derive(Debug)]
pub(crate) struct CasLimit {
    /// The first value that the cache may draw; 0 before the first [`CasLimit::set`].
    from: RarelyWritten,
    /// The first value that the cache must not draw. Because of the lock, handles that take a block
    /// see a change of the range as a whole.
    end: Mutex<u64>,
}

/// A word that each draw reads. Its alignment keeps the lock of a [`CasLimit`], which changes with
/// each block, on another cache line.
#[derive(Debug)]
#[repr(align(128))]
struct RarelyWritten(AtomicU64);

/// The error of a draw: the cache has used up its range of CAS values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoCasLeft;

impl CasLimit {
    /// Creates the state of a cache without a limit.
    pub(crate) fn new() -> Self {
        Self { from: RarelyWritten(AtomicU64::new(0)), end: Mutex::new(0) }
    }

    /// Restricts the cache to the values from `from` to below `end`. The counter never falls.
    pub(crate) fn set(&self, words: &CasWords, from: u64, end: u64) {
        let mut limit = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        words.next.fetch_max(from, Ordering::Relaxed);
        *limit = end;
        let from = from.max(1);
        if from > self.from() {
            self.from.0.store(from, Ordering::Release);
        }
    }

    fn from(&self) -> u64 {
        self.from.0.load(Ordering::Acquire)
    }
}

impl CasWords {
    /// Raises the floor to `cas` if the floor is lower. A set that replaces an item without reading
    /// it draws a value above the floor. Ignores a `cas` that a client chose and that is too high
    /// to follow.
    pub(crate) fn raise_floor(&self, cas: u64) {
        let is_followed = cas < FOLLOWED_END || cas < self.next.load(Ordering::Relaxed);
        self.floor.fetch_max(if is_followed { cas } else { 0 }, Ordering::Release);
    }
}

impl CasBlock {
    /// Draws a CAS that differs from `old`. Unless the counter has started over, the CAS is new in
    /// this cache and above `old`. If a client chose an `old` that is not followed, the CAS may be
    /// below `old`.
    ///
    /// # Errors
    /// [`NoCasLeft`]: the cache has a limit, and its range is used up.
    #[inline]
    pub(crate) fn draw(
        &mut self,
        words: &CasWords,
        limit: &CasLimit,
        old: u64,
    ) -> Result<u64, NoCasLeft> {
        if self.next == self.end || self.next <= old || self.next < limit.from() {
            return self.draw_slowly(words, limit, old);
        }
        let cas = self.next;
        self.next += 1;
        Ok(cas)
    }

    /// Draws a CAS if the block has no value above `old`.
    #[cold]
    #[inline(never)]
    fn draw_slowly(
        &mut self,
        words: &CasWords,
        limit: &CasLimit,
        old: u64,
    ) -> Result<u64, NoCasLeft> {
        // An `old` above the bound is also followed if it is below the counter, because a handle
        // may have drawn it.
        let is_followed = old < FOLLOWED_END || old < words.next.load(Ordering::Relaxed);
        let above = if is_followed { old } else { 0 };
        loop {
            if self.next == self.end || self.next <= above || self.next < limit.from() {
                self.refill(words, limit, above)?;
            }
            let cas = self.next;
            self.next += 1;
            // A CAS equals `old` if the counter has reached a value that a client chose and that is
            // not followed.
            if cas != old {
                return Ok(cas);
            }
        }
    }

    /// Makes the last drawn value available again. `before` is the block before the draw. If the
    /// block has not changed since, no value was drawn, and the function does nothing.
    pub(crate) fn put_back_to(&mut self, before: Self) {
        if *self != before {
            self.next -= 1;
        }
    }

    /// Replaces this block with a block whose values are above `above`. In a cache with a limit,
    /// keeps this block if its next value is above `above` and within the range.
    fn refill(&mut self, words: &CasWords, limit: &CasLimit, above: u64) -> Result<(), NoCasLeft> {
        if limit.from() == 0 {
            *self = Self::take(words, above);
            return Ok(());
        }
        let end = limit.end.lock().unwrap_or_else(PoisonError::into_inner);
        let start = words.next.load(Ordering::Relaxed);
        let above = if above < start { above } else { 0 };
        // Only `set` changes `from`, under the lock.
        let from = limit.from();
        if self.next != self.end && self.next > above && self.next >= from {
            return Ok(());
        }
        if start >= *end {
            return Err(NoCasLeft);
        }
        *self = Self { next: start, end: (*end).min(start + LIMITED_BLOCK) };
        // In a cache with a limit, the counter changes only under the lock.
        words.next.store(self.end, Ordering::Relaxed);
        Ok(())
    }

    fn take(words: &CasWords, above: u64) -> Self {
        let start_of = |next: u64| {
            let start = next.max(above + 1);
            if start + BLOCK > COUNTER_END { 1 } else { start }
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

    fn words(next: u64) -> CasWords {
        CasWords { next: AtomicU64::new(next), floor: AtomicU64::new(0) }
    }

    fn draw(handle: &mut CasBlock, words: &CasWords, old: u64) -> u64 {
        handle.draw(words, &CasLimit::new(), old).expect("no limit")
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
            let cas = draw(&mut handles[i % 2], &words, old);
            assert!(cas > old && seen.insert(cas), "{cas} after {old}");
            old = cas;
        }
    }

    #[test]
    fn two_handles_in_turn_use_no_more_than_a_block_for_each_write() {
        for (limit, block) in [(None, BLOCK), (Some(1 << 20), LIMITED_BLOCK)] {
            let (words, cas_limit) = (words(1), CasLimit::new());
            if let Some(end) = limit {
                cas_limit.set(&words, 1, end);
            }
            let mut handles = [CasBlock::default(); 2];
            let last = (0..1000).fold(0, |old, i| {
                handles[i % 2].draw(&words, &cas_limit, old).expect("values are left")
            });
            assert!(last <= 1000 * block + block, "{last}");
        }
    }

    #[test]
    fn values_chosen_by_clients_stay_inside_the_counter() {
        let words = words(1);
        let mut handle = CasBlock::default();
        for old in [FOLLOWED_END - 1, FOLLOWED_END, COUNTER_END - 1, 1 << 62, u64::MAX] {
            let cas = draw(&mut handle, &words, old);
            assert!(cas != old && (1..COUNTER_END).contains(&cas), "{cas} after {old}");
            assert!(old >= FOLLOWED_END || cas > old);
        }
    }

    #[test]
    fn the_counter_starts_over_at_its_end() {
        let words = words(COUNTER_END - BLOCK - 3);
        let mut handle = CasBlock::default();
        let mut old = COUNTER_END - BLOCK - 4;
        for _ in 0..100 {
            let cas = draw(&mut handle, &words, old);
            assert!(cas != old && (1..COUNTER_END).contains(&cas));
            old = cas;
        }
    }

    #[test]
    fn a_limited_cache_draws_each_value_of_its_range_once() {
        let (words, limit) = (words(1), CasLimit::new());
        let mut handles = [CasBlock::default(); 2];
        let mut seen = std::collections::HashSet::new();
        // The rest of this block is below the ranges, and is not drawn any more.
        assert!(seen.insert(handles[0].draw(&words, &limit, 0).unwrap()));
        for (from, end) in [(1000, 1100), (1000, 1203), (5000, 5001), (6000, 6000)] {
            limit.set(&words, from, end);
            let mut last = 0;
            loop {
                let i = seen.len() % 2;
                // Sometimes another writer of the key has drawn the last value.
                let old = if seen.len().is_multiple_of(16) { last } else { 0 };
                let drawn = handles[i].draw(&words, &limit, old);
                assert!(
                    drawn.is_ok_and(|cas| cas > old) || drawn.is_err(),
                    "{drawn:?} after {old}"
                );
                // If the draw fails, try the other handle, whose block may have values left.
                let others = drawn.or_else(|_| handles[1 - i].draw(&words, &limit, 0));
                let Ok(cas) = others.or_else(|_| handles[i].draw(&words, &limit, 0)) else { break };
                assert!(seen.insert(cas) && cas < end, "{cas} twice, or not below {end}");
                assert!(cas >= from, "{cas} is below {from}");
                last = last.max(cas);
            }
            assert!(last == end - 1 || from == end, "the whole range is drawn: {last} of {end}");
        }
    }

    #[test]
    fn a_limited_cache_does_not_follow_values_chosen_by_clients() {
        let (words, limit) = (words(1), CasLimit::new());
        limit.set(&words, 100, 200);
        let mut handle = CasBlock::default();
        let chosen = [150, 5000, FOLLOWED_END - 1, 1 << 60, u64::MAX];
        for (expected, old) in (100..).zip(chosen) {
            assert_eq!(handle.draw(&words, &limit, old), Ok(expected), "after {old}");
        }
    }
}
