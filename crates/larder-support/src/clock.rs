//! A clock of Unix time that never runs backwards. It reads the wall clock once at its start, and
//! then adds the machine's uptime, which on Linux includes the time of a suspension. After a warm
//! restart, a server keeps the items of an earlier process. The server then continues the clock of
//! that process. After a restart of the machine, the clock is as far ahead of the wall clock as the
//! earlier clock was. This way, items keep their lifetimes even if the wall clock was set.
//! [`Clock::ahead`] returns the seconds by which the clock is ahead of Unix time.
//! [`Clock::follow_wall_clock`] measures this difference again, because the wall clock can be set
//! while the server runs.

use larder_store::{Now, Seconds};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The minimum change, in milliseconds, of the difference between the two clocks at which the wall
/// clock counts as set. Smaller changes come from rounding and from corrections by time services.
const STEP_MIN: i64 = 1500;
/// The number of bits for the time in a [`Clock::reboot_checkpoint`]: 32 for the seconds since 1970,
/// and 6 for their fraction.
const CHECKPOINT_TIME_BITS: u32 = 38;
const CHECKPOINT_UNITS_PER_SEC: u64 = 1 << (CHECKPOINT_TIME_BITS - 32);
/// A larger difference from the wall clock is not stored in a checkpoint.
const AHEAD_MAX_SECS: i64 = 366 * 24 * 3600;

// The difference fits in the bits that the time leaves.
const _: () = assert!(AHEAD_MAX_SECS < 1 << (63 - CHECKPOINT_TIME_BITS));

/// The server's clock. Clones share one clock.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The machine's uptime at the start of the clock.
    started: Duration,
    /// The time of this clock at the machine's start.
    offset: Duration,
    /// The seconds by which this clock was ahead of the wall clock at the last comparison of the
    /// two clocks.
    ahead: Arc<AtomicI32>,
}

impl Clock {
    /// Creates a clock with the current time of the wall clock.
    #[must_use]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = machine_time();
        Self { started, offset: unix.saturating_sub(started), ahead: Arc::default() }
    }

    /// Creates a clock that continues a clock of an earlier process, from its
    /// [`Clock::checkpoint`].
    #[must_use]
    pub fn resumed(checkpoint: u64) -> Self {
        Self::start().with_offset(Duration::from_micros(checkpoint))
    }

    /// Creates a clock that continues a clock of an earlier process, from its
    /// [`Clock::reboot_checkpoint`]. The new clock is as far ahead of the wall clock as the earlier
    /// one, so that items keep their lifetimes, but never behind the time of the checkpoint.
    #[must_use]
    pub fn after_reboot(checkpoint: u64) -> Self {
        let clock = Self::start();
        let ahead = checkpoint.cast_signed() >> CHECKPOINT_TIME_BITS;
        let difference = Duration::from_secs(ahead.unsigned_abs());
        let wanted = if ahead < 0 {
            clock.offset.saturating_sub(difference)
        } else {
            clock.offset.saturating_add(difference)
        };
        let time = checkpoint & ((1 << CHECKPOINT_TIME_BITS) - 1);
        let earliest = Duration::from_micros(time * 1_000_000 / CHECKPOINT_UNITS_PER_SEC);
        let offset = wanted.max(earliest.saturating_sub(clock.started));
        clock.with_offset(offset)
    }

    /// Replaces the offset of a clock that [`Clock::start`] has created.
    fn with_offset(self, offset: Duration) -> Self {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let ahead = rounded_secs(millis(offset).saturating_sub(millis(self.offset)));
        Self { offset, ahead: Arc::new(AtomicI32::new(ahead)), ..self }
    }

    /// Returns the seconds by which the clock is ahead of Unix time. The number is negative if the
    /// clock is behind. For a clock from [`Clock::start`], this is 0 until
    /// [`Clock::follow_wall_clock`] detects that the wall clock was set.
    #[must_use]
    pub fn ahead(&self) -> i32 {
        self.ahead.load(Relaxed)
    }

    /// Compares the clock with the wall clock. Returns the seconds by which the wall clock was set
    /// forward since the last comparison. The number is negative if the wall clock was set back.
    /// Returns `None` if the wall clock was not set. If several threads call this function at the
    /// same time, only one of them receives the seconds, and the others receive `None`.
    pub fn follow_wall_clock(&self) -> Option<i32> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let ahead = millis(self.precise()).saturating_sub(millis(unix));
        if (ahead - i64::from(self.ahead()) * 1000).abs() < STEP_MIN {
            return None;
        }
        let ahead = rounded_secs(ahead);
        let before = self.ahead.swap(ahead, Relaxed);
        (before != ahead).then(|| before.saturating_sub(ahead))
    }

    /// Returns a number with which [`Clock::resumed`] can continue this clock in a later process.
    /// The number is the time of this clock at the machine's start, in microseconds. The number is
    /// never 0. It becomes invalid when the machine restarts.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        u64::try_from(self.offset.as_micros()).unwrap_or(u64::MAX).max(1)
    }

    /// Returns a number with which [`Clock::after_reboot`] can continue this clock after the
    /// machine has restarted: the time of this clock, rounded up, in the low
    /// [`CHECKPOINT_TIME_BITS`] bits, and [`Clock::ahead`] in the others. A difference of more than
    /// a year is stored as 0, because the wall clock was then probably not set.
    #[must_use]
    pub fn reboot_checkpoint(&self) -> u64 {
        self.follow_wall_clock();
        let time = self.precise().as_micros() * u128::from(CHECKPOINT_UNITS_PER_SEC);
        let time = u64::try_from(time.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let time = time.min((1 << CHECKPOINT_TIME_BITS) - 1);
        let ahead = Some(i64::from(self.ahead())).filter(|ahead| ahead.abs() <= AHEAD_MAX_SECS);
        (ahead.unwrap_or_default() << CHECKPOINT_TIME_BITS).cast_unsigned() | time
    }

    /// Returns the time since the start of the clock.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        machine_time().saturating_sub(self.started)
    }

    /// Returns the seconds since the start of the clock.
    #[must_use]
    pub fn uptime(&self) -> u64 {
        self.elapsed().as_secs()
    }

    /// Returns this clock's time since 1970, with the resolution of the system's clock.
    #[must_use]
    pub fn precise(&self) -> Duration {
        self.offset + machine_time()
    }

    /// Returns the milliseconds since the start of the clock.
    #[must_use]
    pub fn millis(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the current time as a [`Moment`].
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment { time: self.precise(), ahead: self.ahead() }
    }

    /// Returns the current time of this clock in whole seconds.
    #[must_use]
    pub fn now(&self) -> Seconds {
        self.moment().seconds()
    }

    /// Returns the Unix time in whole seconds.
    #[must_use]
    pub fn unix_time(&self) -> Seconds {
        let now = Now::from(self.moment());
        Seconds(now.unix_of(now.secs))
    }
}

/// A reading of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// The clock's time since 1970.
    time: Duration,
    /// The value of [`Clock::ahead`].
    ahead: i32,
}

impl Moment {
    /// Returns the time since 1970 in whole seconds, rounded down.
    #[must_use]
    pub fn seconds(self) -> Seconds {
        Seconds(u32::try_from(self.time.as_secs()).unwrap_or(u32::MAX))
    }

    /// Returns the time from `earlier` to this moment, or 0 if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.time.saturating_sub(earlier.time)
    }

    /// Returns the moment that is `time` earlier, but not before 1970.
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        Self { time: self.time.saturating_sub(time), ..self }
    }
}

impl From<Moment> for Now {
    fn from(moment: Moment) -> Self {
        let millis =
            u16::try_from(moment.time.subsec_millis()).expect("a second has 1000 milliseconds");
        Self { secs: moment.seconds(), millis, ahead: moment.ahead }
    }
}

/// Rounds milliseconds to seconds. Never returns `i32::MIN`, so that callers can negate the result.
fn rounded_secs(millis: i64) -> i32 {
    let secs = millis.saturating_add(500).div_euclid(1000);
    i32::try_from(secs.clamp((-i32::MAX).into(), i32::MAX.into())).unwrap_or_default()
}

/// Returns the uptime of the machine in milliseconds. The uptime includes the time that the machine
/// was suspended, so that a leader detects its own suspension. If the system reports no time,
/// returns `u64::MAX`, so that every lease counts as expired.
#[must_use]
pub fn boot_millis() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
    time.map_or(u64::MAX, |time| time.as_millis().try_into().unwrap_or(u64::MAX))
}

/// Returns the uptime of the machine. On Linux, the uptime includes the time that the machine was
/// suspended.
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
    fn a_resumed_clock_continues_the_first_one() {
        let first = Clock::start();
        let checkpoint = first.checkpoint();
        let before = first.precise();
        let second = Clock::resumed(checkpoint);
        let after = second.precise();
        assert!(after + Duration::from_micros(2) >= before);
        assert!(after.saturating_sub(before) < Duration::from_secs(60));
        assert_eq!((second.checkpoint(), second.ahead()), (checkpoint, 0));
        assert_eq!(second.uptime(), 0);
    }

    #[test]
    fn a_wall_clock_that_is_set_is_followed() {
        let clock = Clock::start();
        let same = clock.clone();
        assert_eq!(clock.follow_wall_clock(), None);
        // Simulate a wall clock that was an hour ahead or behind at the last comparison.
        for step in [-3600, 3600] {
            clock.ahead.store(step, Relaxed);
            assert_eq!(clock.unix_time().0.abs_diff(clock.now().0), 3600);
            assert_eq!(same.follow_wall_clock(), Some(step));
            assert_eq!((clock.ahead(), clock.follow_wall_clock()), (0, None));
        }
        clock.ahead.store(1, Relaxed);
        assert_eq!(clock.follow_wall_clock(), None, "time services change less at once");
    }

    #[test]
    fn a_clock_that_was_started_wrong_knows_by_how_much() {
        let right = Clock::start();
        for (checkpoint, ahead) in [
            (right.checkpoint() + 3_600_000_000, 3600),
            (right.checkpoint() - 3_600_000_000, -3600),
            (1, i32::try_from(right.offset.as_secs()).unwrap().saturating_neg()),
        ] {
            let clock = Clock::resumed(checkpoint);
            assert!(clock.ahead().abs_diff(ahead) <= 1, "{} for {ahead}", clock.ahead());
            assert!(clock.unix_time().0.abs_diff(right.now().0) <= 1);
        }
        assert_eq!(Clock::resumed(u64::MAX).ahead(), i32::MAX);
    }

    #[test]
    fn a_clock_continues_after_a_reboot() {
        let right = Clock::start();
        let hour = Duration::from_secs(3600);
        for offset in [right.offset, right.offset + hour, right.offset - hour] {
            let first = Clock::start().with_offset(offset);
            let before = first.precise();
            let second = Clock::after_reboot(first.reboot_checkpoint());
            let after = second.precise();
            assert!(after >= before && after - before < Duration::from_secs(60), "{first:?}");
            assert!(second.ahead().abs_diff(first.ahead()) <= 1, "{first:?} {second:?}");
            assert!(second.unix_time().0.abs_diff(right.now().0) <= 1);
        }
        // The wall clock was set back after the checkpoint.
        let later = u64::from(right.now().0 + 50) * CHECKPOINT_UNITS_PER_SEC;
        let ahead = Clock::after_reboot(later).ahead();
        assert!(ahead.abs_diff(50) <= 1, "{ahead}");
        // The wall clock showed the start of 1970 when the checkpoint was made.
        let first = Clock::start().with_offset(right.offset + Duration::from_secs(50 << 25));
        assert!(Clock::after_reboot(first.reboot_checkpoint()).ahead() > 1 << 30);
        let unset = first.reboot_checkpoint() >> CHECKPOINT_TIME_BITS;
        assert_eq!(unset, 0, "no difference is stored");
        // Many restarts within a second do not set the clock forward.
        let mut clock = Clock::start();
        for _ in 0..20 {
            clock = Clock::after_reboot(clock.reboot_checkpoint());
        }
        assert!(clock.precise().abs_diff(right.precise()) < Duration::from_secs(1));
        // The checkpoint is old.
        assert_eq!(Clock::after_reboot(50 * CHECKPOINT_UNITS_PER_SEC).ahead(), 0);
    }
}
