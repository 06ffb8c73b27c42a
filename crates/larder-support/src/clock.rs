//! Unix seconds that never run backwards: the wall clock at the start, then the time since the machine was
//! started, which goes on while the machine sleeps. A server that has its items from an earlier process
//! continues that process's clock.

use larder_store::{Now, Seconds};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The server's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The time since the machine was started, when the clock was.
    started: Duration,
    /// What this clock showed when the machine was started.
    offset: Duration,
}

impl Clock {
    /// A clock that starts now, with the time of the wall clock.
    #[must_use]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = machine_time();
        Self { started, offset: unix.saturating_sub(started) }
    }

    /// A clock that continues the one with this [`Clock::note`].
    #[must_use]
    pub fn resumed(note: u64) -> Self {
        Self { started: machine_time(), offset: Duration::from_micros(note) }
    }

    /// A clock that starts now with the time of the wall clock, or later if that is before `earliest`.
    #[must_use]
    pub fn not_before(earliest: Duration) -> Self {
        let clock = Self::start();
        let offset = clock.offset.max(earliest.saturating_sub(clock.started));
        Self { offset, ..clock }
    }

    /// What it takes to continue this clock, until the machine is started again. It is not 0.
    #[must_use]
    pub fn note(&self) -> u64 {
        u64::try_from(self.offset.as_micros()).unwrap_or(u64::MAX).max(1)
    }

    /// The time since it started.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        machine_time().saturating_sub(self.started)
    }

    /// Seconds since it started.
    #[must_use]
    pub fn uptime(&self) -> u64 {
        self.elapsed().as_secs()
    }

    /// The time since 1970, as exactly as the system has it.
    #[must_use]
    pub fn precise(&self) -> Duration {
        self.offset + machine_time()
    }

    /// Milliseconds since it started.
    #[must_use]
    pub fn millis(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The time as exactly as the system has it, which also says the whole seconds.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment(self.precise())
    }

    /// The time in whole seconds.
    #[must_use]
    pub fn now(&self) -> Seconds {
        self.moment().seconds()
    }
}

/// A reading of the clock: the time since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The whole seconds.
    #[must_use]
    pub fn seconds(self) -> Seconds {
        Seconds(u32::try_from(self.0.as_secs()).unwrap_or(u32::MAX))
    }

    /// The time from `earlier` to this.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment this long before.
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl From<Moment> for Now {
    fn from(moment: Moment) -> Self {
        let millis = u16::try_from(moment.0.subsec_millis()).expect("they are below 1000");
        Self { secs: moment.seconds(), millis }
    }
}

/// Milliseconds of a clock that continues while the machine is suspended, so that a leader that resumes notices the
/// pause.
#[must_use]
pub fn boot_millis() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
    time.map_or(u64::MAX, |time| time.as_millis().try_into().unwrap_or(u64::MAX))
}

/// The time since the machine was started.
fn machine_time() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC;
    nix::time::clock_gettime(CLOCK).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_resumed_goes_on() {
        let first = Clock::start();
        let note = first.note();
        let before = first.precise();
        let second = Clock::resumed(note);
        let after = second.precise();
        assert!(after + Duration::from_micros(2) >= before);
        assert!(after.saturating_sub(before) < Duration::from_secs(60));
        assert_eq!(second.note(), note);
        assert_eq!(second.uptime(), 0);
    }
}
