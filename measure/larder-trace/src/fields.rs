//! Parsers for the fields of a line in either form.

use std::num::NonZeroU32;

/// Maximum length of a memcached key.
const KEY_LEN_MAX: usize = 250;

/// Maximum size of a value, in bytes.
const VALUE_LEN_MAX: u32 = 1 << 30;

pub(crate) fn key(field: &[u8]) -> Result<&[u8], &'static str> {
    let is_plain = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    let is_key = (1..=KEY_LEN_MAX).contains(&field.len()) && field.iter().all(is_plain);
    is_key.then_some(field).ok_or("a key has 1 to 250 bytes without spaces and control characters")
}

/// Parses a time in seconds. Returns the time and the unit of its last digit, both in nanoseconds.
/// Ignores decimals after the ninth.
pub(crate) fn time(field: &[u8]) -> Result<(u64, u64), &'static str> {
    let point = field.iter().position(|byte| *byte == b'.');
    let (whole, decimals) = match point {
        Some(point) => (&field[..point], &field[point + 1..]),
        None => (field, &b""[..]),
    };
    let is_number = field.len() > usize::from(point.is_some())
        && whole.len() <= SECS_DIGITS_MAX
        && whole.iter().chain(decimals).all(u8::is_ascii_digit);
    if !is_number {
        return Err("the time must be a number of seconds");
    }
    let mut nanos = digits(whole) * NANOS_PER_SEC;
    let mut unit = NANOS_PER_SEC;
    for digit in decimals.iter().take(9) {
        unit /= 10;
        nanos += u64::from(digit - b'0') * unit;
    }
    Ok((nanos, unit))
}

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Maximum number of digits before the decimal point of a time in seconds. With more digits, the
/// time in nanoseconds could exceed 64 bits.
const SECS_DIGITS_MAX: usize = 10;

fn digits(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

pub(crate) fn value_len(field: &[u8]) -> Result<u32, &'static str> {
    let size = parse(field).filter(|size| *size <= VALUE_LEN_MAX);
    size.ok_or("the size must be a number of bytes up to 2^30")
}

/// Returns the TTL in seconds; `None` if the field is empty or 0.
pub(crate) fn ttl_secs(field: &[u8]) -> Result<Option<NonZeroU32>, &'static str> {
    if field.is_empty() {
        return Ok(None);
    }
    parse(field).map(NonZeroU32::new).ok_or("the TTL must be a whole number of seconds")
}

/// Checks that the field with the key's length is a number. The reader does not use the number.
pub(crate) fn key_len(field: &[u8]) -> Result<(), &'static str> {
    parse::<u32>(field).map(drop).ok_or("the key size must be a number of bytes")
}

fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}
