//! Conversion of expiry times from their form in requests to points in time.

use larder_operations::expiry_at;
use larder_protocol::{Exptime, RELATIVE_SECS_MAX};
use larder_store::{Expiry, Now, Seconds};

/// The expiry for `exptime` in a request that is executed at `now`.
pub(crate) fn resolve(exptime: Exptime, now: Now) -> Expiry {
    let at = match exptime.0 {
        0 => return Expiry::Never,
        ..0 => 0,
        relative @ 1..=RELATIVE_SECS_MAX => i64::from(now.secs.0) + relative,
        absolute => absolute,
    };
    Expiry::At(Seconds(u32::try_from(at).unwrap_or(u32::MAX)).max(now.secs))
}

/// The expiry for `millis`, counted from `now` or since 1970. `None` if [`expiry_at`] has none.
pub(crate) fn resolve_millis(millis: i64, absolute: bool, now: Now) -> Option<Expiry> {
    let from = if absolute { 0 } else { now.in_millis() };
    let end = i64::try_from(from).ok()?.checked_add(millis)?;
    expiry_at(u64::try_from(end).unwrap_or(0), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_absolute_past_and_never() {
        let now = Seconds(1_700_000_000);
        let at = |secs| Expiry::At(Seconds(secs));
        let cases = [
            (0, Expiry::Never),
            (-1, at(now.0)),
            (1, at(now.0 + 1)),
            (2_592_000, at(now.0 + 2_592_000)),
            (2_592_001, at(now.0)),
            (1_700_000_100, at(1_700_000_100)),
            (0xffff_ffff, at(u32::MAX)),
        ];
        for (sent, expected) in cases {
            assert_eq!(resolve(Exptime(sent), now.into()), expected, "{sent}");
        }
    }

    #[test]
    fn milliseconds_are_exact_within_a_minute() {
        let now = Now { secs: Seconds(1_700_000_000), millis: 250 };
        let from = now.in_millis();
        for (millis, absolute, expected) in [
            (1, false, from + 1),
            (1750, false, from + 1750),
            (59_999, false, from + 59_999),
            (60_000, false, from + 59_750),
            (0, false, from),
            (-5000, false, from - 5000),
            (1_700_000_000_001, true, 1_700_000_000_001),
            (1, true, 1),
            (i64::MIN, true, 0),
        ] {
            let end = resolve_millis(millis, absolute, now).and_then(Expiry::in_millis);
            assert_eq!(end, Some(expected), "{millis}");
        }
        assert_eq!(resolve_millis(i64::MAX, false, now), None);
        assert_eq!(resolve_millis(i64::MAX, true, now), None);
        let last = i64::from(u32::MAX - 1) * 1000;
        assert_eq!(resolve_millis(last, true, now), Some(Expiry::At(Seconds(u32::MAX - 1))));
        assert_eq!(resolve_millis(last + 1, true, now), None);
    }
}
