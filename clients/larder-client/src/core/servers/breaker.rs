//! A circuit breaker. While it is open, calls fail at once instead of waiting for their deadlines.
//!
//! ```text
//!            5 faults in a row              the pause is over: one call probes
//!   Closed ────────────────────▶ Open ───────────────────────────────────────▶ Probing
//!     ▲                            ▲                                             │  │
//!     │                            └──── it fails: a pause twice as long ────────┘  │
//!     └─────────────────────────────── it succeeds ────────────────────────────────┘
//! ```

use std::time::{Duration, Instant};

/// The number of consecutive faults that opens the breaker.
const FAULTS_MAX: u32 = 5;
/// The first pause. Each further pause is double the previous pause, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause. With this limit, the client detects a recovered server within two seconds,
/// even if a connection attempt starts just before the recovery and fails 250 ms later.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The random variation of each pause, as a fraction of the pause. The variation prevents clients
/// from retrying at the same time.
const JITTER: f64 = 0.25;
/// The time for which a probe without a result blocks the next probe.
const PROBE_TIME: Duration = Duration::from_secs(5);

/// The breaker of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Breaker {
    /// The number of faults since the last reply.
    faults: u32,
    /// The number of pauses since the last reply. This number determines the length of the next
    /// pause.
    pauses: u32,
    /// The breaker admits no call before this time: the end of the pause, or the time limit of the
    /// probe under way. `None` while the breaker is closed.
    open_until: Option<Instant>,
}

/// The role of an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionKind {
    /// A regular call.
    Call,
    /// A call that tests whether the server works again.
    Probe,
}

impl Breaker {
    /// Admits a call, or refuses it.
    ///
    /// # Errors
    /// The breaker is open. The error is the remaining time until the breaker admits a call.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<AdmissionKind, Duration> {
        match self.open_until {
            None => Ok(AdmissionKind::Call),
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                // Admit no other call until the probe has a result or its time has passed.
                self.open_until = Some(now + PROBE_TIME);
                Ok(AdmissionKind::Probe)
            }
        }
    }

    /// Returns whether the breaker would admit a call.
    pub(crate) fn is_available(&self, now: Instant) -> bool {
        self.open_until.is_none_or(|until| until <= now)
    }

    /// Records a reply, which closes the breaker.
    pub(crate) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Records a server fault. Opens the breaker after [`FAULTS_MAX`] faults in a row, and again
    /// after a failed probe. `random` is a random number from 0 to 1 for the [`JITTER`].
    pub(crate) fn fail(&mut self, call: AdmissionKind, now: Instant, random: f64) {
        self.faults = self.faults.saturating_add(1);
        let is_known = call == AdmissionKind::Call && self.open_until.is_some();
        if self.faults < FAULTS_MAX || is_known {
            return;
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.pauses.min(16)).min(PAUSE_MAX);
        self.pauses = self.pauses.saturating_add(1);
        self.open_until = Some(now + pause.mul_f64(1.0 - JITTER + 2.0 * JITTER * random));
    }

    /// Records a call whose outcome proves neither that the server works nor that it is at fault.
    /// If the call was the probe, the next call may probe at once.
    pub(crate) fn pass(&mut self, call: AdmissionKind, now: Instant) {
        // Do not open the breaker again if another call has closed it during the probe.
        if call == AdmissionKind::Probe && self.open_until.is_some() {
            self.open_until = Some(now);
        }
    }

    /// Returns whether the breaker is open or a probe is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.open_until.is_some()
    }

    /// Returns whether no fault has occurred since the last reply. If so, the caller need not
    /// record replies.
    pub(crate) fn is_healthy(&self) -> bool {
        self.faults == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_follows_each_pause() {
        let (mut now, millis) = (Instant::now(), Duration::from_millis);
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            assert_eq!(breaker.admit(now), Ok(AdmissionKind::Call));
        }
        // Calls that were admitted before the breaker opened do not lengthen the pause.
        (0..100).for_each(|_| breaker.fail(AdmissionKind::Call, now, 0.5));
        for pause in [100, 200, 400, 800, 1000, 1000] {
            assert_eq!(breaker.admit(now), Err(millis(pause)));
            now += millis(pause);
            assert_eq!(breaker.admit(now), Ok(AdmissionKind::Probe));
            assert_eq!(breaker.admit(now), Err(PROBE_TIME), "others wait for the probe");
            breaker.fail(AdmissionKind::Call, now, 0.5);
            breaker.fail(AdmissionKind::Probe, now, 0.5);
        }
        breaker.succeed();
        assert!(breaker.is_healthy());
        assert_eq!([breaker.admit(now), breaker.admit(now)], [Ok(AdmissionKind::Call); 2]);
    }

    /// Simulates continuous calls during and after an outage. Returns the time from the end of the
    /// outage to the first success. During the outage, each admitted call fails after `attempt`.
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
    fn a_recovered_server_is_found_within_two_seconds() {
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
    fn an_inconclusive_probe_admits_another_one() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        (0..5).for_each(|_| breaker.fail(AdmissionKind::Call, now, 0.0));
        let later = now + Duration::from_millis(75);
        assert_eq!(breaker.admit(later), Ok(AdmissionKind::Probe));
        assert!(breaker.admit(later).is_err());
        breaker.pass(AdmissionKind::Call, later);
        assert!(breaker.admit(later).is_err());
        breaker.pass(AdmissionKind::Probe, later);
        assert_eq!(breaker.admit(later), Ok(AdmissionKind::Probe));
        assert_eq!(breaker.admit(later + PROBE_TIME), Ok(AdmissionKind::Probe));
    }

    #[test]
    fn an_inconclusive_probe_does_not_reopen_the_breaker() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        (0..5).for_each(|_| breaker.fail(AdmissionKind::Call, now, 0.5));
        assert_eq!(breaker.admit(now + PAUSE_MIN), Ok(AdmissionKind::Probe));
        // A reply to an earlier call closes the breaker.
        breaker.succeed();
        breaker.pass(AdmissionKind::Probe, now + PAUSE_MIN);
        assert_eq!(breaker, Breaker::default());
    }
}
