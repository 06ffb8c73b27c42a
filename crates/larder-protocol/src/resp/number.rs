//! Parsing of numbers with the rules of redis-server's `string2ll`.

/// Parses a number in canonical decimal form, which has no blanks, plus sign or leading zeros.
/// Returns `None` for other strings, and for a number that does not fit in 64 bits.
#[must_use]
pub fn i64_of(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !is_negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => (),
        _ => return None,
    }
    let mut number = 0_u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(digit - b'0');
    }
    if is_negative { 0_i64.checked_sub_unsigned(number) } else { number.try_into().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_of_a_number_is_accepted() {
        for number in [0, 7, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(i64_of(number.to_string().as_bytes()), Some(number));
        }
        for bad in ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1a", "9223372036854775808"] {
            assert_eq!(i64_of(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(i64_of(b"-9223372036854775809"), None);
        assert_eq!(i64_of(b"99999999999999999999"), None);
    }
}
