//! The cache's clock, in whole seconds. Maintenance advances it, so reading it costs one load.

use larder_store::{Expiry, Seconds};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The clock's time at its start, in seconds. It is not 0, because the engine uses 0 for "no time".
const FIRST: u64 = 1;

#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    now: AtomicU32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let clock = Self { start: Instant::now(), now: AtomicU32::new(0) };
        clock.advance();
        clock
    }

    #[inline]
    pub(crate) fn now(&self) -> Seconds {
        Seconds(self.now.load(Relaxed))
    }

    /// Advances the clock to the time that has passed since its start.
    pub(crate) fn advance(&self) {
        self.now.fetch_max(second_of(self.start.elapsed()).unwrap_or(u32::MAX), Relaxed);
    }

    /// Returns the time until the next whole second, at which [`Clock::advance`] is due.
    pub(crate) fn until_next(&self) -> Duration {
        Duration::from_secs(1) - Duration::from_nanos(self.start.elapsed().subsec_nanos().into())
    }

    /// Returns the time until `second` starts, or zero if it has started.
    pub(crate) fn until(&self, second: Seconds) -> Duration {
        let begin = Duration::from_secs(u64::from(second.0).saturating_sub(FIRST));
        begin.saturating_sub(self.start.elapsed())
    }

    /// Returns the expiry of an item that is stored now: the last whole second within `ttl`, but at
    /// least the second after [`Clock::now`]. Returns `Expiry::Never` without `ttl`, or if `ttl`
    /// exceeds the clock's range.
    pub(crate) fn expiry(&self, ttl: Option<Duration>) -> Expiry {
        let Some(ttl) = ttl else { return Expiry::Never };
        let end = self.start.elapsed().checked_add(ttl).and_then(second_of);
        end.map_or(Expiry::Never, |end| {
            Expiry::At(Seconds(end.max(self.now().0.saturating_add(1))))
        })
    }
}

/// Converts the time since the start of the clock to a reading of the clock in seconds. Returns
/// `None` if the time exceeds the clock's range.
fn second_of(elapsed: Duration) -> Option<u32> {
    u32::try_from(elapsed.as_secs().checked_add(FIRST)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_not_after_its_ttl_but_at_least_the_next_second() {
        let clock = Clock::new();
        assert_eq!(clock.expiry(None), Expiry::Never);
        assert_eq!(clock.expiry(Some(Duration::MAX)), Expiry::Never);
        let next = Seconds(clock.now().0 + 1);
        assert_eq!(clock.expiry(Some(Duration::ZERO)), Expiry::At(next));
        let Expiry::At(at) = clock.expiry(Some(Duration::from_secs(10))) else {
            panic!("an item with a ttl expires")
        };
        assert!((10..=12).contains(&(at.0 - clock.now().0)), "{at:?}");
    }
}
