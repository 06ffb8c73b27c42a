//! Numbers as memcached reads them.
#![expect(clippy::cast_possible_truncation, reason = "memcached reduces these numbers")]

/// Strict decimal digits, the whole token, at most 2^64-1 and 22 characters.
#[inline]
pub(crate) fn u64_of(token: &[u8]) -> Option<u64> {
    if token.is_empty() || token.len() > 22 {
        return None;
    }
    token.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// The same up to 2^32-1 and 11 characters.
#[inline]
pub(crate) fn u32_of(token: &[u8]) -> Option<u32> {
    if token.len() > 11 {
        return None;
    }
    u64_of(token).and_then(|number| u32::try_from(number).ok())
}

/// The same with a sign, within 32 bits.
#[inline]
pub(crate) fn i32_of(token: &[u8]) -> Option<i32> {
    let (negative, digits) = match token.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, token),
    };
    let number = i64::try_from(u64_of(digits)?).ok()?;
    i32::try_from(if negative { -number } else { number }).ok()
}

/// `strtoul` on the whole token, for the client flags of classic stores: a leading `+` is accepted,
/// what exceeds 32 bits is reduced, negative numbers are refused.
#[inline]
pub(crate) fn flags_of(token: &[u8]) -> Option<u32> {
    let digits = token.strip_prefix(b"+").unwrap_or(token);
    let number = saturating(digits)?;
    Some((number & u64::from(u32::MAX)) as u32)
}

/// `strtol` on the whole token, for the expiry of classic stores, reduced to 32 bits as memcached
/// does.
#[inline]
pub(crate) fn exptime_of(token: &[u8]) -> Option<i32> {
    let (negative, digits) = match token {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let number = i64::try_from(saturating(digits)?).unwrap_or(i64::MAX);
    Some((if negative { -number } else { number }) as i32)
}

/// Digits; `u64::MAX` where they exceed it.
fn saturating(digits: &[u8]) -> Option<u64> {
    let digits_only = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    digits_only.then(|| {
        digits.iter().fold(0_u64, |number, digit| {
            number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_numbers() {
        assert_eq!(u64_of(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(u64_of(b"0018446744073709551615"), Some(u64::MAX));
        for bad in ["", "-1", "+1", "1 ", "18446744073709551616", "1a", "00000000000000000000001"] {
            assert_eq!(u64_of(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!((u32_of(b"4294967295"), u32_of(b"4294967296")), (Some(u32::MAX), None));
        assert_eq!((i32_of(b"-2147483648"), i32_of(b"2147483648")), (Some(i32::MIN), None));
        assert_eq!((i32_of(b"-"), i32_of(b"--1")), (None, None));
    }

    #[test]
    fn lenient_numbers() {
        assert_eq!(flags_of(b"+7"), Some(7));
        assert_eq!(flags_of(b"4294967296"), Some(0));
        assert_eq!(flags_of(b"18446744073709551615"), Some(u32::MAX));
        assert_eq!((flags_of(b"-1"), flags_of(b"x"), flags_of(b"")), (None, None, None));
        assert_eq!(exptime_of(b"2147483648"), Some(i32::MIN));
        assert_eq!((exptime_of(b"-1"), exptime_of(b"+1")), (Some(-1), Some(1)));
    }
}
