//! Free lists: dead records' blocks, grouped by length and reused for new records of the same
//! length.
//!
//! While a cache has unused memory, an overwritten or deleted item of up to [`LEN_MAX`] bytes
//! usually leaves a free block in its segment, and a later item of the same length is written
//! there. So the cache needs no new memory for that item and moves no live item. Once all memory
//! except the reserve has been used, cleaning and eviction free memory instead, and there are no
//! free lists.
//!
//! ```text
//!   record dies          the epoch ends             readers of that epoch have ended         overflow
//!  ─────────────▶ young ────────────────▶ waiting ──────────────────────────────────▶ ready ◀────────▶ pool
//! ```
//! A block is in at most one of these lists. Its segment may be emptied while the block is listed.
//! [`super::table::Entry::take_dead`] detects an emptied segment when a handle takes the block.

use super::epoch::Epoch;
use super::table::Sequence;
use crate::segment::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use std::sync::PoisonError;

/// The maximum length in bytes of a record whose block is reused. Few longer records have the same
/// length.
pub(crate) const LEN_MAX: usize = 8192;
/// Record lengths are multiples of this number of bytes.
const LEN_UNIT: usize = 8;
const LENGTHS: usize = LEN_MAX / LEN_UNIT + 1;
/// A handle ends the epoch of its young blocks once it has this many. Model checks use a low
/// number.
const YOUNG_MIN: usize = if cfg!(shuttle) { 2 } else { 32 };
/// The maximum number of young blocks per handle. The handle drops further blocks. Young blocks
/// accumulate while a reader keeps the waiting blocks from becoming ready.
const YOUNG_MAX: usize = 8192;
/// A handle keeps ready blocks of one length up to this total length in bytes. If it has more, it
/// gives blocks with half of this total length to the pool. Other handles reuse these blocks before
/// they allocate new memory.
const OWN_BYTES: usize = if cfg!(shuttle) { 1 << 10 } else { 16 << 10 };
/// The number of ready blocks of one length above which a handle may give blocks to the pool.
const OWN_MIN: usize = if cfg!(shuttle) { 2 } else { 4 };
/// The maximum number of blocks in the pool is the limit in bytes divided by this number, so that
/// the pool's entries take at most 0.4 % of the limit.
const POOL_SHARE: usize = 4096;

/// The memory of a dead record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeBlock {
    /// The offset of the record in the region.
    pub(crate) offset: usize,
    /// The sequence of the record's segment when the record died.
    pub(crate) sequence: Sequence,
}

/// Returns how many blocks of `len` bytes a handle takes from the pool, or gives to the pool, at a
/// time.
fn share(len: usize) -> usize {
    (OWN_BYTES / 2 / len.max(1)).max(OWN_MIN / 2)
}

/// The free blocks of one handle.
#[derive(Debug, Default)]
pub(crate) struct FreeLists {
    /// Blocks, with their lengths, that readers may still see.
    young: Vec<(usize, FreeBlock)>,
    /// Blocks, with their lengths, that can be overwritten once all readers of [`FreeLists::epoch`]
    /// and of earlier epochs have finished.
    waiting: Vec<(usize, FreeBlock)>,
    epoch: u64,
    /// Blocks that can be overwritten now: one list for each length. There are no lists before the
    /// first block is ready.
    ready: Vec<Vec<FreeBlock>>,
}

impl FreeLists {
    /// Adds the block of a dead record of `len` bytes, at most [`LEN_MAX`]. No index word refers to
    /// the record any more. Ignores the block if there are [`YOUNG_MAX`] young blocks.
    #[inline]
    pub(crate) fn add(&mut self, len: usize, block: FreeBlock) {
        strict_assert!(len <= LEN_MAX);
        if self.young.len() < YOUNG_MAX {
            self.young.push((len, block));
        }
    }

    /// If there are at least [`YOUNG_MIN`] young blocks and no reader can see the waiting blocks
    /// any more, ends the epoch. The waiting blocks are then ready, and the young blocks are
    /// waiting.
    pub(crate) fn advance(&mut self, pool: &Pool, epoch: &Epoch, oldest_pin: impl Fn() -> u64) {
        if self.young.len() < YOUNG_MIN {
            return;
        }
        if !self.waiting.is_empty() {
            if oldest_pin() <= self.epoch {
                return;
            }
            self.make_lists();
            for (len, block) in self.waiting.drain(..) {
                let ready = &mut self.ready[len / LEN_UNIT];
                ready.push(block);
                if ready.len() > OWN_MIN && ready.len() * len > OWN_BYTES {
                    let given = share(len).min(ready.len());
                    pool.give(len, ready.drain(..given));
                }
            }
        }
        self.epoch = epoch.advance();
        std::mem::swap(&mut self.young, &mut self.waiting);
    }

    fn make_lists(&mut self) {
        if self.ready.is_empty() {
            self.ready.resize_with(LENGTHS, Vec::new);
        }
    }

    /// Takes a ready block of `len` bytes, from the pool if this handle has none. Returns `None` if
    /// neither has such a block.
    #[inline]
    pub(crate) fn take(&mut self, pool: &Pool, len: usize) -> Option<FreeBlock> {
        if self.ready.is_empty() && pool.has(len) {
            self.make_lists();
        }
        let ready = self.ready.get_mut(len / LEN_UNIT)?;
        if ready.is_empty() && pool.has(len) {
            pool.take(len, ready);
        }
        ready.pop()
    }

    /// Drops all blocks.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives the ready blocks to the pool.
    pub(crate) fn give_all(&mut self, pool: &Pool) {
        for (i, ready) in self.ready.iter_mut().enumerate() {
            pool.give(i * LEN_UNIT, ready.drain(..));
        }
    }
}

/// The free blocks that handles share.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The number of blocks per length, readable without the lock.
    counts: Box<[AtomicUsize]>,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    by_len: Vec<Vec<FreeBlock>>,
    total: usize,
    max: usize,
}

impl Pool {
    /// Returns an empty pool for a cache with this limit.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let lists = Lists { max: limit_bytes / POOL_SHARE, ..Lists::default() };
        let counts = (0..LENGTHS).map(|_| AtomicUsize::new(0)).collect();
        Self { counts, lists: Mutex::new(lists) }
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // No code panics while it holds this lock, so the lock is never poisoned.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn give(&self, len: usize, blocks: impl ExactSizeIterator<Item = FreeBlock>) {
        if blocks.len() == 0 {
            return;
        }
        let mut lists = self.lists();
        if lists.total + blocks.len() > lists.max {
            // Drops all blocks of the pool, because many have lengths that are not stored any more,
            // or are in segments that were emptied.
            self.forget(&mut lists);
        }
        if lists.by_len.is_empty() {
            lists.by_len.resize_with(LENGTHS, Vec::new);
        }
        lists.total += blocks.len();
        let list = &mut lists.by_len[len / LEN_UNIT];
        list.extend(blocks);
        self.counts[len / LEN_UNIT].store(list.len(), Ordering::Relaxed);
    }

    #[inline]
    fn has(&self, len: usize) -> bool {
        let count = self.counts.get(len / LEN_UNIT);
        count.is_some_and(|count| count.load(Ordering::Relaxed) != 0)
    }

    #[cold]
    fn take(&self, len: usize, into: &mut Vec<FreeBlock>) {
        let mut lists = self.lists();
        // The list is missing if another handle has cleared the pool since the caller read the
        // count.
        let Some(list) = lists.by_len.get_mut(len / LEN_UNIT) else { return };
        let rest = list.len().saturating_sub(share(len));
        let before = into.len();
        into.extend(list.drain(rest..));
        self.counts[len / LEN_UNIT].store(rest, Ordering::Relaxed);
        lists.total -= into.len() - before;
    }

    fn forget(&self, lists: &mut Lists) {
        *lists = Lists { max: lists.max, ..Lists::default() };
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Drops all blocks.
    pub(crate) fn clear(&self) {
        self.forget(&mut self.lists());
    }
}

/// Returns the age of a segment in seconds, 128 to 255, from which its blocks are not reused any
/// more. There is a maximum because access times are exact only up to 255 seconds after the segment
/// was opened. The age varies with the segment's number, so that segments that were filled at the
/// same time reach it at different times.
pub(crate) fn age_max(segment: u32) -> u32 {
    128 + segment.wrapping_mul(37) % 128
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn block(i: usize) -> FreeBlock {
        FreeBlock { offset: 64 * i, sequence: 1 }
    }

    /// Adds `blocks` blocks of `len` bytes, and advances the epochs until they are ready.
    fn add(lists: &mut FreeLists, pool: &Pool, epoch: &Epoch, len: usize, blocks: usize) {
        for i in 0..blocks {
            lists.add(len, block(i));
            lists.advance(pool, epoch, || u64::MAX);
        }
        for i in blocks..blocks + 2 * YOUNG_MIN {
            lists.add(LEN_MAX, block(i));
        }
        lists.advance(pool, epoch, || u64::MAX);
    }

    #[test]
    fn a_block_is_ready_after_the_readers_of_its_epoch() {
        let (pool, epoch, mut lists) = (Pool::new(1 << 30), Epoch::new(), FreeLists::default());
        for round in 0..4 {
            (0..YOUNG_MIN).for_each(|i| lists.add(64, block(i)));
            // A reader has been pinned since the epoch of the first round, so no block is ready.
            lists.advance(&pool, &epoch, || 1);
            assert_eq!(lists.take(&pool, 64), None, "round {round}");
        }
        lists.advance(&pool, &epoch, || 2);
        let taken = (0..2 * YOUNG_MIN).map_while(|_| lists.take(&pool, 64)).count();
        assert_eq!(taken, YOUNG_MIN, "the blocks of the first round");
    }

    #[test]
    fn handles_take_free_blocks_of_the_same_length_from_each_other() {
        let (pool, epoch) = (Pool::new(1 << 30), Epoch::new());
        let [mut giver, mut taker] = [FreeLists::default(), FreeLists::default()];
        add(&mut giver, &pool, &epoch, 64, 1000);
        let own = OWN_BYTES / 64;
        let mut taken = Vec::new();
        while let Some(block) = taker.take(&pool, 64) {
            taken.push(block.offset);
        }
        assert!(taken.len() >= 1000 - own - 2 * YOUNG_MIN, "{}", taken.len());
        giver.give_all(&pool);
        while let Some(block) = taker.take(&pool, 64) {
            taken.push(block.offset);
        }
        taken.sort_unstable();
        let before = taken.len();
        taken.dedup();
        assert_eq!(taken.len(), before, "each is taken once");
        assert_eq!(taker.take(&pool, 72), None);
    }

    #[test]
    fn the_pool_is_bounded() {
        let pool = Pool::new(100 * POOL_SHARE);
        for round in 0..10 {
            pool.give(64, (0..40).map(block));
            let total = pool.lists().total;
            assert!((40..=100).contains(&total), "{total} in round {round}");
        }
    }
}
