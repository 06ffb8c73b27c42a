//! The schedule of heartbeats on a connection.

use std::time::{Duration, Instant};

/// How often a leader sends a heartbeat.
const INTERVAL: Duration = Duration::from_millis(100);

/// The time of the next heartbeat.
#[derive(Default)]
pub(crate) struct HeartbeatSchedule {
    last: Option<Instant>,
    number: u64,
}

impl HeartbeatSchedule {
    /// The number of the heartbeat that is due now, if one is.
    pub(crate) fn due(&mut self) -> Option<u64> {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= INTERVAL);
        is_due.then(|| {
            self.last = Some(Instant::now());
            self.number += 1;
            self.number
        })
    }

    /// The time to the next one.
    pub(crate) fn left(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| INTERVAL.saturating_sub(last.elapsed()))
    }
}
