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
}
