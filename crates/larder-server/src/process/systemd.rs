//! Notifies systemd that the server is ready, reloading, stopping, or alive (watchdog). Without
//! `NOTIFY_SOCKET`, these functions do nothing.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// The interval between two heartbeats of a worker.
const MAINTENANCE: Duration = Duration::from_secs(1);

/// The watchdog of systemd.
#[derive(Debug)]
pub struct Watchdog {
    /// The time after which systemd considers the server dead; `None` without a watchdog.
    timeout: Option<Duration>,
    notified: Instant,
}

impl Watchdog {
    /// Notifies systemd that the server is ready, and starts the watchdog.
    #[must_use]
    pub fn ready() -> Self {
        notify(&[NotifyState::Ready]);
        Self { timeout: sd_notify::watchdog_enabled(), notified: Instant::now() }
    }

    /// Returns the maximum interval between two calls to [`Watchdog::notify`], or `None` without a
    /// watchdog.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout / 4)
    }

    /// Notifies systemd that the server is alive if a notification is due and every worker has
    /// recorded a recent heartbeat. `stall_time` is the time since the oldest of the workers' last
    /// heartbeats.
    pub fn notify(&mut self, stall_time: Duration) {
        let Some(timeout) = self.timeout else { return };
        if self.notified.elapsed() < timeout / 4 {
            return;
        }
        // Do not count a short stall, because each worker records a heartbeat only about once a
        // second.
        if stall_time < timeout.max(3 * MAINTENANCE) {
            notify(&[NotifyState::Watchdog]);
            self.notified = Instant::now();
        }
    }
}

/// Notifies systemd before and after a call to `reload`.
pub fn reloading(reload: impl FnOnce()) {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now());
    notify(&states);
    reload();
    notify(&[NotifyState::Ready]);
}

/// Notifies systemd that the server is stopping.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "notifying systemd failed; check NOTIFY_SOCKET, and NotifyAccess= of the unit");
    }
}
