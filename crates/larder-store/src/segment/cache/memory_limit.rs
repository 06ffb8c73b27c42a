//! The memory limit, the budgets derived from it, and the allocation of segments within it.

use super::shared::Shared;
use crate::segment::memory::allocator::Alloc;
use crate::segment::memory::free_lists::age_max;
use crate::segment::memory::open_segment::{OPEN_SHARE_MAX, lifetime_count};
use crate::segment::sync::Ordering;
use crate::{LimitRefused, Seconds};

/// Handles alternate (see `write::room`) if there are fewer than this many segments for each
/// handle.
const TIGHT_SHARE: usize = 8;

impl Shared {
    /// Sets the budgets that depend on the number of segments.
    pub(crate) fn divide(&self, segments: usize) {
        let threads = self.config.threads;
        self.limit_segments.store(segments, Ordering::Relaxed);
        let seen = &self.table().header_page().uses.segments_seen;
        seen.fetch_max(segments as u64, Ordering::Relaxed);
        self.lifetimes.store(lifetime_count(segments, threads), Ordering::Relaxed);
        let budget = crate::eviction::open_budget(segments, threads);
        self.open_budget.store(budget, Ordering::Relaxed);
    }

    /// Returns whether there are so few segments for each handle that handles alternate; see
    /// `write::room`.
    pub(crate) fn handles_alternate(&self) -> bool {
        self.handles.load(Ordering::Relaxed) * TIGHT_SHARE > self.limit_segments()
    }

    /// Returns the current limit in segments.
    pub(crate) fn limit_segments(&self) -> usize {
        self.limit_segments.load(Ordering::Relaxed)
    }

    /// Returns a threshold: if at least this many segments are open, a handle looks for an open
    /// segment of another handle before it opens a new segment.
    pub(crate) fn open_max(&self) -> usize {
        let budget = self.open_budget.load(Ordering::Relaxed) * self.config.threads.max(1);
        budget.min(self.limit_segments() / OPEN_SHARE_MAX)
    }

    /// Returns the number of free segments that are reserved for evacuations. Ordinary writes leave
    /// at least half of them free.
    pub(crate) fn reserve(&self) -> usize {
        self.reserve_of(self.limit_segments())
    }

    fn reserve_of(&self, segments: usize) -> usize {
        // The simulator has a copy of this function, without flash (`simulate/s3fifo.rs` of
        // `larder-capacity`).
        let each = 2 + 2 * self.config.threads;
        // Demoting a segment to flash takes memory before it frees any.
        let wanted = if self.flash.is_some() { 2 * each } else { each };
        wanted.min(segments / 8)
    }

    /// Returns the number of the first segment that was never within the limit. No later segment
    /// was within it either.
    pub(crate) fn segments_seen(&self) -> usize {
        let seen = &self.table().header_page().uses.segments_seen;
        usize::try_from(seen.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Takes a free segment. Returns `None` if at most `reserve` segments are free, or if the
    /// system refuses the segment's memory.
    pub(crate) fn take(&self, reserve: usize) -> Option<u32> {
        let segment = self.alloc().take(reserve)?;
        self.commit(segment)
    }

    /// Takes an untouched segment. Returns `None` if no free segment is untouched, if at most
    /// `reserve` segments are free, or if the system refuses the segment's memory.
    pub(crate) fn take_fresh(&self, reserve: usize) -> Option<u32> {
        let segment = self.alloc().take_fresh(reserve)?;
        self.commit(segment)
    }

    /// Allocates file space for the free segments that will be taken last, so that evacuations can
    /// move items when the file system is full. Stops when the system first refuses space.
    pub(super) fn commit_reserve(&self, alloc: &Alloc, segments: usize) {
        for segment in alloc.last_free(self.reserve_of(segments)) {
            if self.table().commit(segment).is_err() {
                break;
            }
        }
    }

    /// Allocates file space for a segment. If the system refuses the space, lowers the limit so
    /// that the cache uses no more memory than before, and returns `None`.
    fn commit(&self, segment: u32) -> Option<u32> {
        if self.table().commit(segment).is_ok() {
            return Some(segment);
        }
        let mut alloc = self.alloc();
        let segments = alloc.refuse(segment, self.reserve());
        let bytes = self.table().layout.limit_for(segments);
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        self.divide(segments);
        self.limit_changes.fetch_add(1, Ordering::Release);
        drop(alloc);
        self.mrc.set_limit(bytes);
        None
    }

    pub(crate) fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        let layout = &self.table().layout;
        let mut alloc = self.alloc();
        let min = layout.limit_for(alloc.limit_min());
        // A limit may exceed the end of the last segment by less than a segment.
        let max = layout.limit_for(layout.segments + 1) - 1;
        if bytes > max || bytes < min {
            return Err(LimitRefused { min, max });
        }
        let segments = layout.segments_within(bytes);
        if self.table().commit_bookkeeping(segments).is_err() {
            return Err(LimitRefused { min, max: self.limit_bytes.load(Ordering::Relaxed) });
        }
        alloc.set_limit(segments);
        self.commit_reserve(&alloc, segments);
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        self.divide(segments);
        // Makes handles seal their open segments, which may be too many under the new limit.
        self.limit_changes.fetch_add(1, Ordering::Release);
        drop(alloc);
        self.mrc.set_limit(bytes);
        Ok(())
    }

    /// Returns whether a segment is so old that its free blocks are not reused.
    pub(crate) fn is_aged(&self, segment: u32, now: Seconds) -> bool {
        now.0.saturating_sub(self.table().entry(segment).base().0) >= age_max(segment)
    }

    /// Returns whether there are free lists, which contain the blocks of dead records that new
    /// records may overwrite. Free lists exist while the number of untouched segments exceeds the
    /// reserve.
    #[inline]
    pub(crate) fn has_free_lists(&self) -> bool {
        self.has_unused.load(Ordering::Relaxed) != 0
    }

    /// Records whether the number of untouched segments exceeds the reserve. If it does not,
    /// empties the pool of free blocks.
    pub(crate) fn note_unused(&self, has_unused: bool) {
        if self.has_free_lists() != has_unused {
            self.has_unused.store(has_unused.into(), Ordering::Relaxed);
            if !has_unused {
                self.pool.clear();
            }
        }
    }
}
