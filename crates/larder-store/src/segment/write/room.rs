//! Finds memory for a write: free segments, retired segments that readers may still see, segments
//! of idle handles, and segments that can be cleaned or evicted. All waiting is bounded. A write
//! that finds no memory is refused.
//!
//! If there are few segments for each handle (`Shared::handles_alternate`) and more threads than
//! cores, preempted threads hold most of the memory: the segments that they read, append to and
//! empty. With so few segments, handles alternate. A handle then keeps segments only during an
//! update, and has no pin during that time. Only one handle at a time empties segments.

use crate::Refusal;
use crate::segment::cache::handle_shared::{Evacuation, WriteState};
use crate::segment::cache::shared::Shared;
use crate::segment::handle::state::Handle;
use crate::segment::large_value::upload::Upload;
use crate::segment::memory::open_segment::Open;
use crate::segment::memory::table::SegmentState;
use crate::segment::sync::{Ordering, wait_for_others};
use std::sync::Arc;

/// A write stops evicting while many retired segments wait for readers: more than the number of all
/// segments divided by this number, and more than the reserve. Further evictions would free nothing
/// until these readers end their batches.
const RETIRED_SHARE_MAX: usize = 8;
/// The maximum number of times that a write waits for readers to end their batches: about 100 ms in
/// all. A preempted thread usually resumes within that time, even on a virtual machine that itself
/// waits for a core.
const WAITS_MAX: u32 = 1000;
/// In a cache that evicts, a write waits at most this many times while no retired memory waits for
/// readers: a few milliseconds in all.
const WAITS_MAX_WITHOUT_RETIRED: u32 = 64;
/// The maximum number of times that a write waits while handles alternate: about a second in all.
const WAITS_MAX_TIGHT: u32 = 10_000;
/// The maximum number of attempts to take a segment before a write is refused. Each attempt frees
/// memory or waits. While handles alternate, the maximum is [`WAITS_MAX_TIGHT`].
const ROUNDS_MAX: u32 = 1000;

impl Handle {
    /// Takes a free segment for a write. Frees memory and waits for readers as necessary. Refuses
    /// the write if that yields no segment.
    pub(crate) fn take_segment(&mut self) -> Result<u32, Refusal> {
        let waits_max = if self.shared.handles_alternate() { WAITS_MAX_TIGHT } else { WAITS_MAX };
        self.take_segment_within(waits_max)
    }

    /// Takes a free segment like [`Handle::take_segment`], but does not wait. A write that has an
    /// alternative calls this function.
    pub(crate) fn try_segment(&mut self) -> Result<u32, Refusal> {
        self.take_segment_within(0)
    }

    fn take_segment_within(&mut self, waits_max: u32) -> Result<u32, Refusal> {
        let (mut waits, mut epoch) = (0, None);
        for _ in 0..ROUNDS_MAX.max(waits_max) {
            self.collect();
            self.ensure_free();
            let taken = self.shared.take(self.shared.reserve() / 2);
            if let Some(segment) = taken {
                self.shared.table().entry(segment).set_state(SegmentState::Taken);
                return Ok(segment);
            }
            if self.evacuate_until_free() {
                continue;
            }
            // Skip `free_idle` while evacuations keep items that can't be written to flash yet. An
            // evacuation opens segments for the items before such an item. Each round would seal
            // these segments, and the next round would open others.
            if !self.keeps_unwritten && self.free_idle() {
                continue;
            }
            let next = self.shared.alloc().next_epoch();
            if std::mem::replace(&mut epoch, next) != next {
                // Wait longer: readers are ending their batches, but other writes have taken the
                // freed memory.
                waits = 0;
            }
            // Other handles may be emptying all the segments that can be emptied.
            let is_early = self.shared.config.evict && waits < WAITS_MAX_WITHOUT_RETIRED;
            let may_come = next.is_some() || is_early || self.shared.handles_alternate();
            if !may_come || waits == waits_max || !self.wait_for_readers(&mut waits, waits_max) {
                break;
            }
        }
        Err(Refusal::OutOfMemory)
    }

    /// Renews this handle's own pin, and frees the retired memory that no reader can see any more.
    /// Renewing is safe because no item is borrowed during a write.
    fn collect(&mut self) {
        if self.shared.alloc().retired_segments() > 0 {
            self.pin.renew(&self.shared.epoch);
            self.shared.collect();
        }
    }

    /// Starts an evacuation if the cache will need free segments or new memory soon, and sets the
    /// rate of the current evacuation. Does nothing while handles alternate.
    fn ensure_free(&mut self) {
        if self.shared.handles_alternate() {
            return;
        }
        let (free_or_pending, reserve) =
            (self.shared.alloc().free_or_pending(), self.shared.reserve());
        if self.shared.needs_evictions() {
            self.begin_evacuation();
        } else {
            self.begin_early_cleaning();
        }
        self.set_evacuation_rate(free_or_pending, reserve);
    }

    /// Evacuates records until enough segments are free or retired. Returns true if it made
    /// progress and put no segment back into its queue. Returns false while handles alternate and
    /// another handle is evacuating. May stop in the middle of a segment, because a single item may
    /// own many segments.
    fn evacuate_until_free(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let evacuation_lock = shared.handles_alternate().then(|| shared.evacuating.try_lock());
        if matches!(evacuation_lock, Some(Err(_))) {
            return false;
        }
        let mut worked = false;
        while self.wants_more() && self.begin_evacuation() {
            if !self.evacuate_next() {
                return false;
            }
            worked = true;
        }
        worked
    }

    /// Returns whether a write should evict more: few segments are free, and so few are retired
    /// that further evictions would help.
    fn wants_more(&self) -> bool {
        let alloc = self.shared.alloc();
        let retired_max =
            self.shared.reserve().max(self.shared.limit_segments() / RETIRED_SHARE_MAX);
        alloc.free() <= self.shared.reserve() / 2 && alloc.retired_segments() <= retired_max
    }

    /// Seals the open segments of this handle, dropped handles and handles between two batches, and
    /// puts back the segments that handles between two batches were emptying. Returns true if it
    /// sealed or put back any segment. Does nothing while handles alternate.
    fn free_idle(&mut self) -> bool {
        if self.shared.handles_alternate() {
            // Do not seal the open segments, because another handle will append to them.
            return false;
        }
        let (shared, writer) = self.writer();
        let has_own = !writer.writing.open.is_empty();
        shared.seal_all(writer.writing);
        let has_orphans = shared.seal_orphans();
        shared.seal_idle() || has_orphans || has_own
    }

    /// Waits briefly for other handles to end their batches. Returns false without waiting if a
    /// write has already waited for the same epoch without success, so that only the first write
    /// waits for a stalled reader. While handles alternate, every write waits.
    fn wait_for_readers(&mut self, waits: &mut u32, waits_max: u32) -> bool {
        let epoch = self.shared.alloc().next_epoch().unwrap_or(0);
        let shared = Arc::clone(&self.shared);
        let stalled = &shared.stalled_epoch;
        let handles_alternate = self.shared.handles_alternate();
        if !handles_alternate && epoch != 0 && stalled.load(Ordering::Relaxed) == epoch {
            return false;
        }
        // Other handles may wait for the pin or the segments of this handle.
        self.pin.pause();
        self.end_writing();
        wait_for_others(*waits);
        *waits += 1;
        if *waits == waits_max {
            stalled.store(epoch, Ordering::Relaxed);
        }
        true
    }

    pub(crate) fn extend_segments(&mut self, upload: &mut Upload) -> Result<(), Refusal> {
        if upload.is_at_limit() {
            return Err(Refusal::OutOfMemory);
        }
        let segment = self.take_segment()?;
        upload.add_segment(segment);
        Ok(())
    }
}

impl Shared {
    /// Frees the retired memory that no reader can see any more.
    pub(crate) fn collect(self: &Arc<Self>) {
        if self.alloc().retired_segments() == 0 {
            return;
        }
        let oldest = self.oldest_pin();
        loop {
            let retired = self.alloc().take_retired(oldest);
            let Some(retired) = retired else { return };
            self.release(retired.first);
        }
    }

    /// Takes an open segment of a handle between two batches, if `fits` returns true for the
    /// segment. If no segment fits, seals another open segment of such a handle, and returns
    /// `None`.
    pub(crate) fn take_idle_open(&self, fits: impl Fn(&Open) -> bool) -> Option<Open> {
        let take = |wanted: &dyn Fn(&Open) -> bool| {
            self.handle_list().iter().find_map(|handle_shared| {
                let open = handle_shared.with_idle(|writing| {
                    let i = writing.open.iter().position(wanted)?;
                    Some(writing.open.swap_remove(i))
                });
                open.flatten()
            })
        };
        let taken = take(&fits);
        if taken.is_none()
            && let Some(other) = take(&|_| true)
        {
            self.seal(&other);
        }
        taken
    }

    /// Takes over the evacuation of a handle between two batches. Returns `None` if no such handle
    /// is evacuating a segment.
    pub(crate) fn take_idle_evacuation(&self) -> Option<Evacuation> {
        let take = |writing: &mut WriteState| writing.evacuation.take();
        self.handle_list().iter().find_map(|handle_shared| handle_shared.with_idle(take).flatten())
    }

    /// Seals the open segments of handles between two batches, and puts back the segments that they
    /// were emptying. Returns true if it sealed or put back any segment.
    fn seal_idle(&self) -> bool {
        let mut any = false;
        self.for_each_handle(|handle_shared| {
            let idle = handle_shared.with_idle(|writing| {
                let evacuation = writing.evacuation.take();
                let any = evacuation.is_some() || !writing.open.is_empty();
                evacuation.iter().for_each(|evacuation| self.put_back(evacuation));
                self.seal_all(writing);
                any
            });
            any |= idle == Some(true);
        });
        any
    }

    /// Seals the open segments of dropped handles. Returns true if it sealed any.
    fn seal_orphans(&self) -> bool {
        let orphans = std::mem::take(&mut self.alloc().orphans);
        orphans.iter().for_each(|open| self.seal(open));
        !orphans.is_empty()
    }
}
