//! Writes numbers, and parses them with memcached's rules.
#![expect(clippy::cast_possible_truncation, reason = "memcached reduces these numbers")]

/// Writes a number in decimal digits.
#[inline]
pub(crate) fn push(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Writes the length of a value and at most four bytes after it. Numbers below 1,000, which are
/// most lengths, are assembled in a machine word, which needs no loop, no table and no copy of
/// variable length.
#[expect(clippy::inline_always, reason = "a call costs `get` 2 % of its instructions")]
#[inline(always)]
pub(crate) fn push_len<const N: usize>(number: usize, end: &[u8; N], out: &mut Vec<u8>) {
    if number >= 1000 {
        return push_long(number, end, out);
    }
    let number = number as u64;
    // The word is written in little-endian order, so its lowest byte holds the first digit.
    let digits = (number / 100) | ((number / 10 % 10) << 8) | ((number % 10) << 16);
    let mut word = *b"000\0\0\0\0\0";
    const { assert!(N <= 4, "`end` fits the word, here and in `push_long`") };
    word.iter_mut().skip(3).zip(end).for_each(|(to, from)| *to = *from);
    let leading_zeros = 2 - u32::from(number >= 10) - u32::from(number >= 100);
    let word = (digits | u64::from_le_bytes(word)) >> (8 * leading_zeros);
    let end = out.len() + 3 + N - leading_zeros as usize;
    out.extend_from_slice(&word.to_le_bytes());
    out.truncate(end);
}

/// The slow path of [`push_len`], for numbers of at least 1,000. Numbers of four digits are
/// assembled in a machine word; [`push`] writes longer numbers.
#[inline(never)]
fn push_long<const N: usize>(number: usize, end: &[u8; N], out: &mut Vec<u8>) {
    if number >= 10_000 {
        push(number as u64, out);
        return out.extend_from_slice(end);
    }
    let number = number as u64;
    let (high, low) = (number / 100, number % 100);
    let digits = (high / 10) | ((high % 10) << 8) | ((low / 10) << 16) | ((low % 10) << 24);
    let mut word = *b"0000\0\0\0\0";
    word.iter_mut().skip(4).zip(end).for_each(|(to, from)| *to = *from);
    let word = digits | u64::from_le_bytes(word);
    let end = out.len() + 4 + N;
    out.extend_from_slice(&word.to_le_bytes());
    out.truncate(end);
}

/// Parses a token of decimal digits: at most 2^64-1, and at most 22 characters.
#[inline]
pub(crate) fn u64_of(token: &[u8]) -> Option<u64> {
    // Numbers of up to 19 digits fit in 64 bits.
    const DIGITS_SAFE: usize = 19;
    if token.is_empty() || token.len() > DIGITS_SAFE {
        return long_u64_of(token);
    }
    let mut number = 0;
    for byte in token {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

#[cold]
fn long_u64_of(token: &[u8]) -> Option<u64> {
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

/// Parses a token of decimal digits: at most 2^32-1, and at most 11 characters.
#[inline]
pub(crate) fn u32_of(token: &[u8]) -> Option<u32> {
    if token.len() > 11 {
        return None;
    }
    u64_of(token).and_then(|number| u32::try_from(number).ok())
}

/// Parses a signed 32-bit number of at most 11 characters. Parses a minus sign without digits as 0.
#[inline]
pub(crate) fn i32_of(token: &[u8]) -> Option<i32> {
    let (negative, digits) = match token {
        [b'-'] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if token.len() > 11 {
        return None;
    }
    let number = i64::try_from(u64_of(digits)?).ok()?;
    i32::try_from(if negative { -number } else { number }).ok()
}

/// Parses the client flags of a classic store as `strtoul` does, and truncates them to 32 bits.
/// Like memcached, refuses a negative number if the number modulo 2^64 is above `i64::MAX`.
#[inline]
pub(crate) fn flags_of(token: &[u8]) -> Option<u32> {
    if let Some(number) = u64_of(token) {
        return Some(number as u32);
    }
    let (negative, number) = c_number(token)?;
    let number = if negative { number.wrapping_neg() } else { number };
    let refused = negative && number > i64::MAX as u64;
    (!refused).then_some(number as u32)
}

/// Parses the expiry of a classic store as `strtol` does, and truncates it to 32 bits as memcached
/// does.
#[inline]
pub(crate) fn exptime_of(token: &[u8]) -> Option<i32> {
    if let Some(number) = u64_of(token) {
        return i64::try_from(number).ok().map(|number| number as i32);
    }
    let (negative, number) = c_number(token)?;
    let number = if negative { 0_i64.checked_sub_unsigned(number) } else { number.try_into().ok() };
    number.map(|number| number as i32)
}

/// Parses a number as the C library does. Returns whether it has a minus sign, and its absolute
/// value. Skips leading white space. If white space or a NUL follows the digits, ignores all bytes
/// from there on. Returns `None` if there are no digits, if another character follows them, or if
/// the number does not fit in 64 bits.
#[cold]
fn c_number(token: &[u8]) -> Option<(bool, u64)> {
    let is_blank = |byte: &u8| matches!(byte, b'\t'..=b'\r');
    let blanks = token.iter().take_while(|byte| is_blank(byte)).count();
    let (negative, digits) = match token.get(blanks..)? {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, behind) = digits.split_at_checked(len)?;
    if digits.is_empty() || behind.first().is_some_and(|byte| *byte != 0 && !is_blank(byte)) {
        return None;
    }
    let number = digits.iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    Some((negative, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_len_writes_the_digits_and_the_end() {
        for number in (0..20_000).chain([99_999, 1 << 30, usize::MAX]) {
            let mut out = b"x".to_vec();
            push_len(number, b"\r\n", &mut out);
            push_len(number, b"", &mut out);
            push_len(number, b" abc", &mut out);
            assert_eq!(out, format!("x{number}\r\n{number}{number} abc").into_bytes());
        }
    }

    #[test]
    fn strict_parsing_accepts_only_digits() {
        assert_eq!(u64_of(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(u64_of(b"0018446744073709551615"), Some(u64::MAX));
        for bad in ["", "-1", "+1", "1 ", "18446744073709551616", "1a", "00000000000000000000001"] {
            assert_eq!(u64_of(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!((u32_of(b"4294967295"), u32_of(b"4294967296")), (Some(u32::MAX), None));
        assert_eq!((i32_of(b"-2147483648"), i32_of(b"2147483648")), (Some(i32::MIN), None));
        assert_eq!((i32_of(b"-"), i32_of(b"--1"), i32_of(b"")), (Some(0), None, None));
        assert_eq!((i32_of(b"00000000001"), i32_of(b"000000000001")), (Some(1), None));
    }

    #[test]
    fn lenient_parsing_follows_strtol() {
        assert_eq!(flags_of(b"+7"), Some(7));
        assert_eq!(flags_of(b"4294967296"), Some(0));
        assert_eq!(flags_of(b"18446744073709551615"), Some(u32::MAX));
        assert_eq!(flags_of(b"-18446744073709551615"), Some(1));
        assert_eq!(
            (flags_of(b"-0"), flags_of(b"\t1\rx"), flags_of(b"1\0x")),
            (Some(0), Some(1), Some(1))
        );
        for bad in ["-1", "x", "", "+", "-", "1x", "+-1", "18446744073709551616", "\t"] {
            assert_eq!(flags_of(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(exptime_of(b"2147483648"), Some(i32::MIN));
        assert_eq!((exptime_of(b"-1"), exptime_of(b"+1")), (Some(-1), Some(1)));
        assert_eq!(exptime_of(b"-9223372036854775808"), Some(0));
        for bad in ["9223372036854775808", "-9223372036854775809", "18446744073709551616", "-"] {
            assert_eq!(exptime_of(bad.as_bytes()), None, "{bad}");
        }
    }
}
