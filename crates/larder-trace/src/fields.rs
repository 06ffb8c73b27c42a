//! The fields of a line, with the rules that all forms share.

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

/// The time in nanoseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked before")]
pub(crate) fn nanos(field: &[u8]) -> Result<u64, &'static str> {
    let secs: Option<f64> = parse(field);
    let secs = secs.filter(|secs| (0.0..1e10).contains(secs));
    // Microseconds are exact in an `f64` up to the year 2255.
    let nanos = secs.map(|secs| (secs * 1e6).round() as u64 * 1000);
    nanos.ok_or("the time must be a number of seconds")
}

pub(crate) fn value_len(field: &[u8]) -> Result<u32, &'static str> {
    let size = parse(field).filter(|size| *size <= VALUE_LEN_MAX);
    size.ok_or("the size must be a number of bytes up to 2^30")
}

/// The TTL in seconds; none if the field is empty or 0.
pub(crate) fn ttl_secs(field: &[u8]) -> Result<Option<NonZeroU32>, &'static str> {
    if field.is_empty() {
        return Ok(None);
    }
    parse(field).map(NonZeroU32::new).ok_or("the TTL must be a whole number of seconds")
}

fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}
