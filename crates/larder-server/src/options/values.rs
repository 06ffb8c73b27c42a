//! Values of options: numbers, sizes, file modes and delimiters.

use super::words::trimmed_value;
use std::str::FromStr;

/// Parses a number. Ignores white space around it, as memcached does.
pub(super) fn number<N: FromStr>(text: &str) -> Result<N, N::Err> {
    trimmed_value(text).parse()
}

pub(super) fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [delimiter, ..] => Ok(*delimiter),
        [] => Err("no delimiter specified".to_owned()),
    }
}

pub(super) fn octal(text: &str) -> Result<u32, String> {
    let mask = u32::from_str_radix(text, 8).map_err(|_| format!("{text} is not octal"))?;
    if mask <= 0o777 { Ok(mask) } else { Err(format!("{text} is not a file mode")) }
}

pub(super) fn item_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let count = number::<usize>(digits).map_err(|_| format!("{text} is not a size"))?;
    count.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}
