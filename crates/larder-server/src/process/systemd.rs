//! Notifications of systemd: ready, reloading, stopping, and that the threads are alive. Without
//! `NOTIFY_SOCKET` none of these functions does anything.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// How often workers are seen alive.
const MAINTENANCE: Duration = Duration::from_secs(1);

/// What systemd waits for.
#[derive(Debug)]
pub struct Watchdog {
    /// How long systemd waits before it considers the server dead.
    timeout: Option<Duration>,
    told: Instant,
}

impl Watchdog {
    /// Notifies that the server is ready, and starts the watchdog.
    #[must_use]
    pub fn ready() -> Self {
        notify(&[NotifyState::Ready]);
        Self { timeout: sd_notify::watchdog_enabled(), told: Instant::now() }
    }

    /// The longest time until the next [`Watchdog::tell`].
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout / 4)
    }

    /// Notifies that the server is alive, if it is and the notification is due. `stall_time` is the
    /// longest time for which a thread has not been seen alive.
    pub fn tell(&mut self, stall_time: Duration) {
        let Some(timeout) = self.timeout else { return };
        if self.told.elapsed() < timeout / 4 {
            return;
        }
        // They are seen alive about once a second.
        if stall_time < timeout.max(3 * MAINTENANCE) {
            notify(&[NotifyState::Watchdog]);
            self.told = Instant::now();
        }
    }
}

/// Notifies that files are read again, reads them, and notifies that this is done.
pub fn reloading(reload: impl FnOnce()) {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now());
    notify(&states);
    reload();
    notify(&[NotifyState::Ready]);
}

/// Notifies that the server ends.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told of the server's state (NOTIFY_SOCKET)");
    }
}
