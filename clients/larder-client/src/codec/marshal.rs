//! Bytes, text and numbers in the format of Ruby's `Marshal`, version 4.8.
//!
//! ```text
//!   04 08  '"' len bytes                               bytes
//!   04 08  'I' '"' len bytes  len(1) ':' len(1) 'E' T  text in UTF-8 (T), US-ASCII (F)
//!   04 08  'i' number                                  -2^30 ≤ number < 2^30
//!   04 08  'l' '+' or '-' len(words) bytes             larger numbers: 16-bit words, little-endian
//! ```
//! Lengths are encoded like numbers. A number from -123 to 122 takes one byte; 0 is a zero byte.
//! Any other number takes a byte with the count of its bytes (negative for negative numbers), then
//! these bytes, little-endian.

use super::{InvalidValue, Value};
use bytes::Bytes;
use larder_protocol::VALUE_LEN_MAX;

const VERSION: [u8; 2] = [4, 8];
const SHORT: std::ops::Range<i64> = -(1 << 30)..1 << 30;

pub(super) fn write(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(&VERSION);
    match value {
        Value::Bytes(bytes) => write_bytes(b'"', bytes, out),
        Value::Text(text) => {
            out.push(b'I');
            write_bytes(b'"', text.as_bytes(), out);
            write_number(1, out);
            write_bytes(b':', b"E", out);
            out.push(b'T');
        }
        Value::Integer(number) if SHORT.contains(number) => {
            out.push(b'i');
            write_number(*number, out);
        }
        Value::Integer(number) => {
            let bytes = number.unsigned_abs().to_le_bytes();
            let words = bytes.chunks(2).rposition(|word| word != [0, 0]).map_or(1, |last| last + 1);
            out.extend_from_slice(if *number < 0 { b"l-" } else { b"l+" });
            write_len(words, out);
            out.extend(bytes.iter().take(2 * words));
        }
    }
}

fn write_bytes(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    write_len(bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn write_len(len: usize, out: &mut Vec<u8>) {
    write_number(i64::try_from(len).unwrap_or(i64::MAX), out);
}

fn write_number(number: i64, out: &mut Vec<u8>) {
    let [low, ..] = number.to_le_bytes();
    match number {
        0 => out.push(0),
        1..=122 => out.push(low + 5),
        -123..=-1 => out.push(low.wrapping_sub(5)),
        _ => {
            // Omits the high bytes that only repeat the sign.
            let sign = if number < 0 { 0xff } else { 0 };
            let bytes = number.to_le_bytes();
            let last = bytes.iter().rposition(|byte| *byte != sign).unwrap_or(0);
            let count = [1_u8, 2, 3, 4, 5, 6, 7, 8].get(last).copied().unwrap_or(8);
            out.push(if number < 0 { count.wrapping_neg() } else { count });
            out.extend(bytes.iter().take(last + 1));
        }
    }
}

/// Reads a value.
///
/// # Errors
/// `OtherType`: the value is an object of another class, a number that does not fit in 64 bits, or
/// a string in another encoding. `Damaged`: the value is malformed or truncated.
pub(super) fn read(bytes: &Bytes) -> Result<Value, InvalidValue> {
    let mut rest = &bytes[..];
    let parsed = (|| {
        let (version, kind) = (take(&mut rest, 2)?, byte(&mut rest)?);
        if version != VERSION {
            return None;
        }
        Some(match kind {
            b'"' => Ok(Value::Bytes(bytes.slice_ref(read_bytes(&mut rest)?))),
            b'i' => Ok(Value::Integer(read_number(&mut rest)?)),
            b'l' => read_long(&mut rest)?,
            b'I' => read_text(&mut rest)?,
            _ => Err(InvalidValue::OtherType),
        })
    })();
    match parsed {
        Some(Ok(_)) if !rest.is_empty() => Err(InvalidValue::Damaged),
        Some(value) => value,
        None => Err(InvalidValue::Damaged),
    }
}

fn take<'b>(rest: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    take(rest, 1)?.first().copied()
}

fn read_bytes<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = usize::try_from(read_number(rest)?).ok().filter(|len| *len <= VALUE_LEN_MAX)?;
    take(rest, len)
}

fn read_number(rest: &mut &[u8]) -> Option<i64> {
    let first = i64::from(byte(rest)?.cast_signed());
    let (count, sign) = match first {
        0 => return Some(0),
        1..=4 => (first, 0),
        -4..=-1 => (-first, 0xff),
        5.. => return Some(first - 5),
        _ => return Some(first + 5),
    };
    let mut bytes = [sign; 8];
    let taken = take(rest, usize::try_from(count).ok()?)?;
    bytes.get_mut(..taken.len())?.copy_from_slice(taken);
    Some(i64::from_le_bytes(bytes))
}

fn read_long(rest: &mut &[u8]) -> Option<Result<Value, InvalidValue>> {
    let sign = byte(rest)?;
    let words = usize::try_from(read_number(rest)?).ok()?;
    let taken = take(rest, words.checked_mul(2)?)?;
    let mut bytes = [0; 16];
    let Some(room) = bytes.get_mut(..taken.len()) else {
        return Some(Err(InvalidValue::OtherType));
    };
    room.copy_from_slice(taken);
    let number = i128::from_le_bytes(bytes);
    let number = if sign == b'-' { number.checked_neg()? } else { number };
    Some(i64::try_from(number).map(Value::Integer).map_err(|_| InvalidValue::OtherType))
}

/// Reads a string and its encoding. Returns `None` if they are malformed.
fn read_text(rest: &mut &[u8]) -> Option<Result<Value, InvalidValue>> {
    if byte(rest)? != b'"' {
        return Some(Err(InvalidValue::OtherType));
    }
    let text = read_bytes(rest)?;
    let (variables, kind) = (read_number(rest)?, byte(rest)?);
    if variables != 1 || kind != b':' || read_bytes(rest)? != b"E" {
        return Some(Err(InvalidValue::OtherType));
    }
    let is_ascii = byte(rest)? == b'F';
    let text = String::from_utf8(text.to_vec()).ok().filter(|text| !is_ascii || text.is_ascii())?;
    Some(Ok(Value::Text(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_survive_a_round_trip(number in any::<i64>(), shift in 0..64_u32) {
            let value = Value::Integer(number >> shift);
            let mut bytes = Vec::new();
            write(&value, &mut bytes);
            prop_assert_eq!(read(&bytes.clone().into()), Ok(value));
            bytes.pop();
            prop_assert!(read(&bytes.into()).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(
            kind in prop::sample::select(b"\"iIl:".to_vec()),
            rest in prop::collection::vec(prop_oneof![0..12_u8, any::<u8>(), Just(b'"')], 0..20),
        ) {
            let _ = read(&[&VERSION[..], &[kind], &rest].concat().into());
        }
    }
}
