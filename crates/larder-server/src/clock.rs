//! Unix seconds that never run backwards: the wall clock at the start, then the monotonic one.

use larder_store::Seconds;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The server's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    started_unix: Duration,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_unix: unix }
    }

    /// Seconds since it started.
    #[must_use]
    pub fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// The time since 1970, as exactly as the system has it.
    #[must_use]
    pub fn precise(&self) -> Duration {
        self.started_unix + self.started.elapsed()
    }

    /// Milliseconds since it started.
    #[must_use]
    pub fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The time in whole seconds.
    #[must_use]
    pub fn now(&self) -> Seconds {
        let unix = self.started_unix.as_secs() + self.uptime();
        Seconds(u32::try_from(unix).unwrap_or(u32::MAX))
    }
}
