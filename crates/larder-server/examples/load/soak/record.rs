//! Values that reveal corruption.
//!
//! ```text
//! | owner u64 | version u64 | length u64 | bytes derived from owner and version..     |
//! ```
//! The check of a record detects the value of another key, an old head with a new tail, and a
//! truncated value.

use crate::wire::{extend_pattern, mix};

/// The minimum length of a record in bytes: its three numbers.
pub(super) const RECORD_LEN_MIN: usize = 24;

/// Writes the record of `owner` and `version`. The record has `len` bytes in total.
pub(super) fn write(out: &mut Vec<u8>, owner: u64, version: u64, len: usize) {
    out.clear();
    for number in [owner, version, len as u64] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    extend_pattern(out, mix(owner ^ mix(version)), len - RECORD_LEN_MIN);
}

/// Checks a record of `owner`. Returns its version, or a description of the fault. `again` is a
/// scratch buffer for the expected record. Callers reuse it to save allocations.
pub(super) fn version(value: &[u8], owner: u64, again: &mut Vec<u8>) -> Result<u64, String> {
    let number = |n: usize| {
        let bytes = value.get(n * 8..n * 8 + 8)?;
        bytes.try_into().ok().map(u64::from_be_bytes)
    };
    let (Some(of), Some(version), Some(len)) = (number(0), number(1), number(2)) else {
        return Err(format!("a value of {} bytes", value.len()));
    };
    if of != owner {
        return Err(format!("the value of key {of:x}, not {owner:x}"));
    }
    if len != value.len() as u64 {
        return Err(format!("{} bytes of a value of {len}", value.len()));
    }
    write(again, owner, version, value.len());
    if again == value { Ok(version) } else { Err(format!("a torn value of version {version}")) }
}
