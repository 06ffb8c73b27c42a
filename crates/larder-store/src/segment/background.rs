//! A handle's work other than answering requests from memory: reads from flash, walks and
//! maintenance.

use super::handle::batch_reads::PendingRead;
use super::handle::state::Handle;
use super::large_value::lease::ChainLease;
use super::sync::Ordering;
use super::walk::Walk;
use crate::engine::*;
#[cfg(unix)]
use std::os::fd::RawFd;
use std::task::Waker;

impl SlowStorage for Handle {
    type PendingRead = PendingRead;

    fn start_read(
        &mut self,
        wanted: ReadRequest,
        waker: &Waker,
        into: &mut Vec<PendingRead>,
    ) -> ReadStart {
        self.fetch_item(wanted, waker, into)
    }

    fn deliver(&mut self, read: &PendingRead) -> Delivery {
        self.deliver_item(read)
    }

    fn submit(&mut self) {
        self.batch_reads.submit();
    }

    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<RawFd> {
        let flash = self.shared.flash.as_ref()?;
        self.batch_reads.poll(flash)
    }

    fn drive_reads(&mut self) {
        self.batch_reads.drive();
    }
}

impl Acknowledge for Handle {
    type Position = std::convert::Infallible;
}

impl Walks for Handle {
    type Walk = Walk;

    fn walk(&self) -> Walk {
        Walk::new(&self.shared)
    }

    fn walk_from(&self, position: u64) -> Walk {
        Walk::from(&self.shared, position)
    }

    fn walk_position(&self, walk: &Walk) -> WalkPosition {
        walk.position()
    }

    fn continue_walk(
        &mut self,
        walk: &mut Walk,
        items: usize,
        waker: &Waker,
        visit: impl FnMut(&[u8], &Item<'_, ChainLease>),
    ) -> WalkState {
        self.walk_step(walk, items, waker, visit)
    }
}

impl Handle {
    /// Does a step of maintenance. The step includes a search for expired items if `searches` is
    /// true, or if a flush or an operator has requested a search.
    fn maintenance_step(&mut self, now: Seconds, searches: bool) -> bool {
        self.now = now.into();
        self.shared.flush_if_due(now);
        if let Some(flash) = &self.shared.flash {
            flash.note_time(now);
        }
        self.shared.collect();
        // A flush or an operator may have requested a search for dead items.
        let searching = (searches || self.is_search_requested()) && self.expiry_step();
        let shrinking = self.step_to_limit();
        let aging = self.demote_idle_step();
        if !self.pin.is_in_batch() {
            self.end_writing();
        }
        shrinking || searching || aging
    }
}

impl Maintenance for Handle {
    fn maintain(&mut self, now: Seconds) -> bool {
        self.maintenance_step(now, true)
    }

    fn shrink(&mut self, now: Seconds) -> bool {
        self.maintenance_step(now, false)
    }

    fn crawl_soon(&mut self) {
        self.shared.crawls.fetch_add(1, Ordering::Relaxed);
    }

    fn gauges(&self) -> Gauges {
        self.shared.gauges()
    }

    fn reset_counters(&self) {
        self.shared.reset_counters();
    }
}
