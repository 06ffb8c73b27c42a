//! Conversions between times to live and expiries.

use larder_operations::expiry_at;
use larder_store::{Expiry, Now};
use std::time::Duration;

/// A time to live of at least this many seconds has whole seconds. A shorter one is exact to the
/// millisecond.
const COARSE_TTL_MIN_SECS: u32 = 60;

/// Returns the expiry of an item with a time to live of `millis` milliseconds. Returns `None` if the
/// cache's clock cannot represent the expiry.
///
/// Rounds a time of at least a minute down to whole seconds, and counts it from the start of the
/// current second. While this second lasts, [`time_left`] returns exactly this time, not more.
pub(crate) fn expiry_after(millis: u64, now: Now) -> Option<Expiry> {
    let end = if millis < u64::from(COARSE_TTL_MIN_SECS) * 1000 {
        now.in_millis().saturating_add(millis)
    } else {
        Now::from(now.secs).in_millis().saturating_add(millis / 1000 * 1000)
    };
    expiry_at(end, now)
}

/// Returns the time until an item expires, or `None` if it never does. The time is exact to the
/// millisecond below a minute. A longer time is rounded up to whole seconds.
pub(crate) fn time_left(expiry: Expiry, now: Now) -> Option<Duration> {
    match (expiry, expiry.left(now)?) {
        (Expiry::At(_), secs) if secs >= COARSE_TTL_MIN_SECS => {
            Some(Duration::from_secs(secs.into()))
        }
        _ => expiry.left_millis(now).map(Duration::from_millis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_store::Seconds;

    fn at(secs: u32, millis: u16) -> Now {
        Now { secs: Seconds(secs), millis, ahead: 0 }
    }

    #[test]
    fn the_time_left_after_a_store_is_the_time_to_live() {
        for (millis, expected) in [
            (1, 1),
            (2_500, 2_500),
            (59_000, 59_000),
            (60_000, 60_000),
            (60_500, 60_000),
            (61_000, 61_000),
            (3_600_999, 3_600_000),
        ] {
            for phase in 0..1000 {
                let now = at(1000, phase);
                let left = expiry_after(millis, now).and_then(|expiry| time_left(expiry, now));
                assert_eq!(left, Some(Duration::from_millis(expected)), "{millis} at {phase}");
            }
        }
        assert_eq!(expiry_after(u64::MAX, at(1000, 0)), None);
        assert_eq!(time_left(Expiry::Never, at(1000, 0)), None);
    }

    #[test]
    fn the_time_left_never_grows() {
        let expiry = expiry_after(61_000, at(1000, 500)).unwrap();
        let left = |secs, millis| time_left(expiry, at(secs, millis)).unwrap().as_millis();
        assert_eq!(left(1000, 999), 61_000);
        assert_eq!(left(1001, 0), 60_000);
        assert_eq!(left(1001, 999), 60_000);
        assert_eq!(left(1002, 1), 58_999);
        assert_eq!(left(1061, 0), 0);
    }
}
