//! The schedule of heartbeats on a connection.

use larder_replica::LEADER_LEASE;
use std::time::{Duration, Instant};

/// The interval at which a leader sends heartbeats. The election simulation of `larder-replica`
/// (`tests/it/election/nodes.rs`) repeats this value as `HEARTBEAT_INTERVAL`.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);

// A lease that starts with a heartbeat must last until the next heartbeat is due.
const _: () =
    assert!(HEARTBEAT_INTERVAL.as_millis() < Duration::from_millis(LEADER_LEASE).as_millis());

/// The schedule of the heartbeats on one connection.
#[derive(Default)]
pub(crate) struct HeartbeatSchedule {
    last: Option<Instant>,
    number: u64,
}

impl HeartbeatSchedule {
    /// Returns the number of the heartbeat to send now, or `None` if none is due. The next one is
    /// due after [`HEARTBEAT_INTERVAL`].
    pub(crate) fn due(&mut self) -> Option<u64> {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= HEARTBEAT_INTERVAL);
        is_due.then(|| {
            self.last = Some(Instant::now());
            self.number += 1;
            self.number
        })
    }

    /// Returns the time until the next heartbeat is due.
    pub(crate) fn left(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| HEARTBEAT_INTERVAL.saturating_sub(last.elapsed()))
    }
}
