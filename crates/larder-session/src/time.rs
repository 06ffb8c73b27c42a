//! Conversion of expiry times, as they are sent, to points in time.

use larder_protocol::{Exptime, RELATIVE_SECS_MAX};
use larder_store::{Expiry, Seconds};

/// The point in time that `exptime` means for a request that is executed at `now`.
pub(crate) fn resolve(exptime: Exptime, now: Seconds) -> Expiry {
    let at = match exptime.0 {
        0 => return Expiry::Never,
        ..0 => 0,
        relative @ 1..=RELATIVE_SECS_MAX => i64::from(now.0) + relative,
        absolute => absolute,
    };
    Expiry::At(Seconds(u32::try_from(at).unwrap_or(u32::MAX)).max(now))
}

/// The point in time that `millis` from now, or since 1970, mean for a request that is executed at
/// `now`: items expire on whole seconds, so it is rounded up. `None` if there is no such time.
pub(crate) fn resolve_millis(millis: i64, absolute: bool, now: Seconds) -> Option<Expiry> {
    let from = if absolute { 0 } else { i64::from(now.0) * 1000 };
    let millis = from.checked_add(millis)?;
    let secs = millis.div_euclid(1000) + i64::from(millis.rem_euclid(1000) > 0);
    let at = u32::try_from(secs.max(0)).unwrap_or(u32::MAX);
    Some(Expiry::At(Seconds(at).max(now)))
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
            assert_eq!(resolve(Exptime(sent), now), expected, "{sent}");
        }
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        let now = Seconds(1_700_000_000);
        for (millis, absolute, expected) in [
            (1, false, 1),
            (1000, false, 1),
            (1001, false, 2),
            (0, false, 0),
            (-5000, false, 0),
            (1_700_000_000_001, true, 1),
            (1, true, 0),
            (i64::MIN, true, 0),
        ] {
            let at = Expiry::At(Seconds(now.0 + expected));
            assert_eq!(resolve_millis(millis, absolute, now), Some(at), "{millis}");
        }
        assert_eq!(resolve_millis(i64::MAX, false, now), None);
        let far = resolve_millis(i64::MAX, true, now);
        assert_eq!(far, Some(Expiry::At(Seconds(u32::MAX))));
    }
}
