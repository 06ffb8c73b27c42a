//! Flags and counters that the threads of a run share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Flags and counters that workers share with the thread that starts them. Workers check the flags
/// at least every [`CHECK_EVERY`](crate::load::worker::CHECK_EVERY).
#[derive(Debug)]
pub(crate) struct Control {
    /// Whether the run was interrupted. After an interruption, no further requests become due. In
    /// an open loop, workers still send the requests that are already due. All workers wait briefly
    /// for outstanding replies.
    interrupted: AtomicBool,
    /// Whether workers must stop immediately.
    stopped: AtomicBool,
    /// The last time at which a reply arrived or nothing was outstanding, in milliseconds since the
    /// start.
    progress: AtomicU64,
    /// Number of connections that are not lost.
    connected: AtomicUsize,
}

impl Control {
    pub(crate) fn new(connections: usize) -> Self {
        Self {
            interrupted: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            connected: AtomicUsize::new(connections),
        }
    }

    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Records that a reply arrived, or nothing was outstanding, at `millis` since the start.
    pub(crate) fn progressed(&self, millis: u64) {
        self.progress.fetch_max(millis, Ordering::Relaxed);
    }

    /// Returns the time of the last progress, since the start of the run.
    pub(crate) fn last_progress(&self) -> Duration {
        Duration::from_millis(self.progress.load(Ordering::Relaxed))
    }

    pub(crate) fn lost_connection(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn all_are_lost(&self) -> bool {
        self.connected.load(Ordering::Relaxed) == 0
    }
}
