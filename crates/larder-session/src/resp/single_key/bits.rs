//! Commands that read bits of a value.

use super::answer::{Answer, number};
use super::read::range;
use crate::Host;
use crate::context::Context;
use larder_store::{Engine, HashedKey, Lease, Lookup, Value};

/// Returns a bit of a value (`GETBIT`). Bit 0 is the most significant bit of the first byte. Bits
/// after the end of the value are 0.
pub(super) fn get_bit<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    offset: u64,
) -> Answer<'static> {
    let (byte, mask) = place_of(offset);
    let lookup = cx.operations.content(key, |content| {
        let byte = match &content.value {
            Value::Whole(bytes) => bytes.get(byte).copied(),
            Value::Large(lease) if byte < lease.len() => lease.piece(byte).first().copied(),
            Value::Large(_) => None,
        };
        Some(i64::from(byte.unwrap_or_default() & mask != 0))
    });
    answer(lookup)
}

/// Returns the number of 1 bits in a range (`BITCOUNT`). The offsets of the range are in bits if
/// `in_bits`, and otherwise in bytes. The end of the range is inclusive.
pub(super) fn bit_count<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    (start, end): (i64, i64),
    in_bits: bool,
) -> Answer<'static> {
    let lookup = cx.operations.content(key, |content| {
        let len = content.value.len();
        let (from, to) = if in_bits {
            range(start, end, len.saturating_mul(8))
        } else {
            let (from, to) = range(start, end, len);
            (8 * from, 8 * to)
        };
        Some(number(match &content.value {
            Value::Whole(bytes) => ones(bytes, from, to),
            Value::Large(lease) => {
                let (mut at, mut ones_before) = (from / 8, 0);
                while 8 * at < to {
                    let piece = lease.piece(at);
                    let first = 8 * at;
                    ones_before += ones(piece, from.saturating_sub(first), to - first);
                    at += piece.len();
                }
                ones_before
            }
        }))
    });
    answer(lookup)
}

/// Returns the index of the byte that contains a bit, and a mask with this bit.
pub(super) fn place_of(offset: u64) -> (usize, u8) {
    (usize::try_from(offset / 8).unwrap_or(usize::MAX), 0x80 >> (offset % 8))
}

/// Returns the number of 1 bits at the bit offsets from `from` to below `to`. Stops at the end of
/// the bytes.
fn ones(bytes: &[u8], from: usize, to: usize) -> usize {
    let to = to.min(8 * bytes.len());
    if from >= to {
        return 0;
    }
    let within = bytes.get(from / 8..to.div_ceil(8)).unwrap_or_default();
    let all: usize = within.iter().map(|byte| byte.count_ones() as usize).sum();
    let ones_before = within.first().map_or(0, |byte| (byte & !(0xff >> (from % 8))).count_ones());
    let ones_after = match to % 8 {
        0 => 0,
        bits => within.last().map_or(0, |byte| (byte & (0xff >> bits)).count_ones()),
    };
    all - ones_before as usize - ones_after as usize
}

/// Converts the result of a lookup to a reply. Without an item, the reply is 0.
fn answer(lookup: Lookup<Option<i64>>) -> Answer<'static> {
    match lookup {
        Lookup::Hit(found) => Some(Ok(found.unwrap_or_default())),
        Lookup::Pending => None,
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => Some(Ok(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_of_any_range_are_counted() {
        let bytes = b"\xff\x01\x80foobar";
        let bit = |at: usize| bytes[at / 8] & (0x80 >> (at % 8)) != 0;
        for from in 0..=8 * bytes.len() {
            for to in from..=8 * bytes.len() {
                let expected = (from..to).filter(|at| bit(*at)).count();
                assert_eq!(ones(bytes, from, to), expected, "{from} {to}");
            }
        }
        assert_eq!(ones(bytes, 0, 1000), ones(bytes, 0, 8 * bytes.len()));
        assert_eq!(ones(&[], 0, 8), 0);
    }
}
