//! The state that all clones of a cache share.

use crate::clock::Clock;
use crate::listener;
use crate::workers::{Claim, Workers};
use larder_store::segment;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Maintenance that has run for at least this time pauses after its current step.
const MAINTENANCE_TIME_MAX: Duration = Duration::from_millis(2);

pub(crate) struct Core {
    /// The number of the cache, which is unique in the process.
    pub(crate) id: u64,
    pub(crate) clock: Clock,
    pub(crate) store: segment::Cache,
    pub(crate) workers: Workers,
    pub(crate) has_listener: bool,
    /// Whether values have versions.
    pub(crate) has_versions: bool,
    /// The channel that wakes the maintenance thread. Dropping this sender stops the thread.
    pub(crate) waker: SyncSender<()>,
}

impl Core {
    #[inline]
    pub(crate) fn claim(&self) -> Claim<'_> {
        self.workers.claim(self.clock.now())
    }

    /// Calls the listener, if the cache has one, for the evictions in this thread's queue.
    #[inline]
    pub(crate) fn deliver(&self) {
        if self.has_listener {
            listener::deliver();
        }
    }

    /// Wakes the maintenance thread.
    pub(crate) fn wake(&self) {
        // If the channel is full, the thread has already been woken.
        let _ = self.waker.try_send(());
    }

    /// Advances the clock, and runs maintenance for about [`MAINTENANCE_TIME_MAX`]. Returns whether
    /// work is left.
    pub(crate) fn maintain(&self) -> bool {
        self.clock.advance();
        let start_time = Instant::now();
        while self.workers.maintain(self.clock.now()) {
            self.deliver();
            if start_time.elapsed() >= MAINTENANCE_TIME_MAX {
                return true;
            }
        }
        self.deliver();
        false
    }
}
