//! Converts expiry times in requests to times on the server's clock.

use larder_operations::expiry_at;
use larder_protocol::{Exptime, RELATIVE_SECS_MAX};
use larder_store::{Expiry, Now, Seconds};

/// Resolves `exptime`, the expiry in a request that the session executes at `now`.
pub(crate) fn resolve(exptime: Exptime, now: Now) -> Expiry {
    let at = match exptime.0 {
        0 => return Expiry::Never,
        ..0 => 0,
        relative @ 1..=RELATIVE_SECS_MAX => i64::from(now.secs.0) + relative,
        absolute => (absolute + i64::from(now.ahead)).max(0),
    };
    Expiry::At(Seconds(u32::try_from(at).unwrap_or(u32::MAX)).max(now.secs))
}

/// Returns the expiry `millis` milliseconds after `now`, or after 1970 if `absolute`. Returns
/// `None` if an item cannot have this expiry: see [`expiry_at`].
pub(crate) fn resolve_millis(millis: i64, absolute: bool, now: Now) -> Option<Expiry> {
    let from =
        if absolute { i64::from(now.ahead) * 1000 } else { i64::try_from(now.in_millis()).ok()? };
    let end = from.checked_add(millis)?;
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
    fn absolute_times_are_unix_times() {
        for ahead in [3600, -3600] {
            let secs = Seconds(1_700_000_000u32.saturating_add_signed(ahead));
            let now = Now { secs, millis: 0, ahead };
            let in_a_minute = Expiry::At(Seconds(secs.0 + 60));
            for sent in [60, 1_700_000_060] {
                assert_eq!(resolve(Exptime(sent), now), in_a_minute, "{sent}");
            }
            assert_eq!(resolve(Exptime(1_699_999_999), now), Expiry::At(secs));
            for (millis, absolute) in [(60_000, false), (1_700_000_060_000, true)] {
                assert_eq!(resolve_millis(millis, absolute, now), Some(in_a_minute), "{millis}");
            }
        }
        let behind = Now { secs: Seconds(5), millis: 0, ahead: -1_700_000_000 };
        assert_eq!(resolve(Exptime(3_000_000), behind), Expiry::At(Seconds(5)));
        assert_eq!(resolve_millis(1000, true, behind), Some(Expiry::At(Seconds(0))));
    }

    #[test]
    fn milliseconds_are_exact_within_a_minute() {
        let now = Now { secs: Seconds(1_700_000_000), millis: 250, ahead: 0 };
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
