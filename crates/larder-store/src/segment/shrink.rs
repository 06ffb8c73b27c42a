//! Giving memory back to the system under a lowered limit.

use super::handle::Handle;
use std::sync::Arc;

/// Records emptied in one step: some hundred microseconds at most.
const STEP: usize = 256;

impl Handle {
    /// Gives one segment that the limit no longer allows back to the system, or makes progress
    /// towards it; whether there is more to do. Writes keep their reserve meanwhile.
    pub(super) fn give_back(&mut self) -> bool {
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
                // SAFETY: the segment was free, and is this handle's until it is decommissioned; it
                // begins and ends at pages.
                unsafe { shared.table().region.discard(start, len) };
            }
            shared.alloc().decommission(segment);
            return true;
        }
        // One record may own many segments: no more of them than it takes.
        let enough = || {
            let alloc = shared.alloc();
            alloc.free_or_pending() >= alloc.excess() + shared.reserve()
        };
        let mut records = 0;
        while records < STEP && !enough() && self.begin_evacuation() && self.evacuate_next() {
            records += 1;
        }
        self.pin.renew(&shared.epoch);
        shared.collect();
        if records == 0 && !enough() {
            self.seal_all();
        }
        records > 0 || shared.alloc().limbo() > 0
    }
}
