//! What systemd is told, where it asks: ready, reloading, stopping, and that the threads are alive.
//! Without `NOTIFY_SOCKET` none of it does anything.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// How often workers are seen alive.
const MAINTENANCE: Duration = Duration::from_secs(1);

/// What systemd waits for.
#[derive(Debug)]
pub struct Watchdog {
    /// How long it waits before it takes the server for dead.
    timeout: Option<Duration>,
    told: Instant,
}

impl Watchdog {
    /// Says that the server is ready, and begins to watch.
    #[must_use]
    pub fn ready() -> Self {
        notify(&[NotifyState::Ready]);
        Self { timeout: sd_notify::watchdog_enabled(), told: Instant::now() }
    }

    /// How long the next [`Watchdog::tell`] may take to come.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout / 4)
    }

    /// Says that the server is alive, if it is and it is time. `stall_time` is how long its quietest
    /// thread was not heard of.
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

/// Says that files are read again, reads them, and says that it is done.
pub fn reloading(reload: impl FnOnce()) {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now());
    notify(&states);
    reload();
    notify(&[NotifyState::Ready]);
}

/// Says that the server ends.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told of the server's state (NOTIFY_SOCKET)");
    }
}
