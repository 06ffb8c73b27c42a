//! A server that fails again and again is left alone for a moment, so that calls for it fail at once instead of each
//! waiting until its deadline.
//!
//! ```text
//!            5 faults in a row              the pause is over: one call tries
//!   Closed ────────────────────▶ Open ───────────────────────────────────────▶ Probing
//!     ▲                            ▲                                             │  │
//!     │                            └──── it fails: a pause twice as long ────────┘  │
//!     └─────────────────────────────── it succeeds ────────────────────────────────┘
//! ```

use std::time::{Duration, Instant};

/// How many faults in a row open the breaker.
const FAULTS_MAX: u32 = 5;
/// The first pause, and the longest. Each has up to a quarter more or less, so that clients do not come together. A
/// server that is back is found within two seconds, also if an attempt to connect was under way when it came back, which
/// may fail 250 ms later.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const JITTER: f64 = 0.25;
/// A probe that says nothing for so long is given up.
const PROBE_TIME: Duration = Duration::from_secs(5);

/// What is known of the faults of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Breaker {
    faults: u32,
    pauses: u32,
    /// Until when no call is let through.
    closed_until: Option<Instant>,
}

/// A call that was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// Like others.
    Call,
    /// It finds out whether the server is there.
    Probe,
}

impl Breaker {
    /// Lets a call through, or says how long to wait.
    ///
    /// # Errors
    /// How long the server is left alone.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<Admitted, Duration> {
        match self.closed_until {
            None => Ok(Admitted::Call),
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                // The others wait for it.
                self.closed_until = Some(now + PROBE_TIME);
                Ok(Admitted::Probe)
            }
        }
    }

    /// Whether a call would be let through.
    pub(crate) fn is_available(&self, now: Instant) -> bool {
        self.closed_until.is_none_or(|until| until <= now)
    }

    /// Notes that a call was answered.
    pub(crate) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Notes that a call failed by the server's fault. `random` is from 0 to 1.
    pub(crate) fn fail(&mut self, call: Admitted, now: Instant, random: f64) {
        self.faults = self.faults.saturating_add(1);
        let is_known = call == Admitted::Call && self.closed_until.is_some();
        if self.faults < FAULTS_MAX || is_known {
            return;
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.pauses.min(16)).min(PAUSE_MAX);
        self.pauses = self.pauses.saturating_add(1);
        self.closed_until = Some(now + pause.mul_f64(1.0 - JITTER + 2.0 * JITTER * random));
    }

    /// Notes that a call ended without saying anything of the server.
    pub(crate) fn pass(&mut self, call: Admitted, now: Instant) {
        // Another call may have closed it meanwhile.
        if call == Admitted::Probe && self.closed_until.is_some() {
            self.closed_until = Some(now);
        }
    }

    /// Whether the server is left alone, or a probe finds out whether it is back.
    pub(crate) fn is_open(&self) -> bool {
        self.closed_until.is_some()
    }

    /// Whether nothing is to be noted of calls that are answered.
    pub(crate) fn is_untroubled(&self) -> bool {
        self.faults == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_tries_after_each_pause() {
        let (mut now, millis) = (Instant::now(), Duration::from_millis);
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            assert_eq!(breaker.admit(now), Ok(Admitted::Call));
        }
        // Calls that were let through before the breaker opened lengthen no pause.
        (0..100).for_each(|_| breaker.fail(Admitted::Call, now, 0.5));
        for pause in [100, 200, 400, 800, 1000, 1000] {
            assert_eq!(breaker.admit(now), Err(millis(pause)));
            now += millis(pause);
            assert_eq!(breaker.admit(now), Ok(Admitted::Probe));
            assert_eq!(breaker.admit(now), Err(PROBE_TIME), "others wait for the probe");
            breaker.fail(Admitted::Call, now, 0.5);
            breaker.fail(Admitted::Probe, now, 0.5);
        }
        breaker.succeed();
        assert!(breaker.is_untroubled());
        assert_eq!([breaker.admit(now), breaker.admit(now)], [Ok(Admitted::Call); 2]);
    }

    /// How long after an outage a server is found to which calls come all the time. While it is away, they fail after
    /// `attempt`.
    fn found_after(outage: Duration, attempt: Duration, random: f64) -> Duration {
        let (start, mut breaker) = (Instant::now(), Breaker::default());
        let mut now = start;
        loop {
            match breaker.admit(now) {
                Err(pause) => now += pause,
                Ok(_) if now - start >= outage => return now - start - outage,
                Ok(call) => {
                    now += attempt;
                    breaker.fail(call, now, random);
                }
            }
        }
    }

    #[test]
    fn a_server_that_is_back_is_found_within_two_seconds_however_long_it_was_away() {
        for attempt in [0, 1, 250].map(Duration::from_millis) {
            for outage in (0..60_000).step_by(7).map(Duration::from_millis) {
                for random in [0.0, 0.5, 1.0] {
                    let found = found_after(outage, attempt, random);
                    assert!(found <= Duration::from_secs(2), "{outage:?} {attempt:?} {found:?}");
                }
            }
        }
    }

    #[test]
    fn a_probe_that_says_nothing_lets_another_one_through() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        (0..5).for_each(|_| breaker.fail(Admitted::Call, now, 0.0));
        let later = now + Duration::from_millis(75);
        assert_eq!(breaker.admit(later), Ok(Admitted::Probe));
        assert!(breaker.admit(later).is_err());
        breaker.pass(Admitted::Call, later);
        assert!(breaker.admit(later).is_err());
        breaker.pass(Admitted::Probe, later);
        assert_eq!(breaker.admit(later), Ok(Admitted::Probe));
        assert_eq!(breaker.admit(later + PROBE_TIME), Ok(Admitted::Probe));
    }

    #[test]
    fn a_probe_that_says_nothing_leaves_what_others_have_found_out() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        (0..5).for_each(|_| breaker.fail(Admitted::Call, now, 0.5));
        assert_eq!(breaker.admit(now + PAUSE_MIN), Ok(Admitted::Probe));
        // An answer to a call from before.
        breaker.succeed();
        breaker.pass(Admitted::Probe, now + PAUSE_MIN);
        assert_eq!(breaker, Breaker::default());
    }
}
