//! Returning memory to the system after the limit was lowered.

use crate::segment::handle::state::Handle;
use crate::segment::memory::table::SegmentState;
use crate::segment::sync::Ordering;
use std::sync::Arc;

/// The maximum number of records that one step evacuates: a few hundred microseconds of work.
const STEP: usize = 256;

impl Handle {
    /// Does one step of the work that follows a lowered limit. Returns true if there is more to do
    /// now.
    pub(crate) fn step_to_limit(&mut self) -> bool {
        let changes = self.shared.limit_changes.load(Ordering::Acquire);
        if std::mem::replace(&mut self.limit_changes, changes) != changes {
            self.seal_all();
        }
        self.give_back()
    }

    /// Gives one segment above the limit back to the system. If no segment is free, evacuates
    /// records to free a segment, unless queued writes to flash must finish first. Returns true if
    /// another step may free more. Leaves the reserve for writes.
    fn give_back(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let free = {
            let mut alloc = shared.alloc();
            if alloc.excess() == 0 {
                return false;
            }
            alloc.take(shared.reserve())
        };
        if let Some(segment) = free {
            let layout = &shared.table().layout;
            if layout.has_whole_pages {
                let (start, len) = (layout.start(segment), layout.segment_len);
                // SAFETY: the segment was free and belongs to this handle until it is
                // decommissioned. It starts and ends at page boundaries.
                let is_zero = unsafe { shared.table().region.discard(start, len) };
                if is_zero {
                    shared.table().entry(segment).set_state(SegmentState::Fresh);
                }
            }
            shared.alloc().decommission(segment);
            return true;
        }
        if shared.waits_for_writes() {
            // Yield, because the thread that writes to flash may wait for this core.
            std::thread::yield_now();
            return true;
        }
        // Checked before each record, because one record may own many segments.
        let enough = || {
            let alloc = shared.alloc();
            alloc.free_or_pending() >= alloc.excess() + shared.reserve()
        };
        let mut records = 0;
        while records < STEP
            && !enough()
            && !shared.waits_for_writes()
            && self.begin_evacuation()
            && self.evacuate_next()
        {
            records += 1;
        }
        self.pin.renew(&shared.epoch);
        shared.collect();
        if records == 0 && !enough() {
            self.seal_all();
        }
        records > 0 || shared.alloc().retired_segments() > 0
    }
}
