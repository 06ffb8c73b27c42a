//! Keys, values, and lookups.
//!
//! Each value ends with the number of its write. With this number, the model determines the order
//! of the values that a follower returns for a key.

use super::world::Complete;
use larder_store::{Access, Engine, HashedKey, Lease, Lookup, Now, Value};

/// The item that a lookup finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundItem {
    /// The number at the end of the value.
    pub(super) write: u64,
    pub(super) value: u64,
    pub(super) client_flags: u32,
    pub(super) stale: bool,
    pub(super) cas: u64,
    pub(super) left: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Found {
    Item(FoundItem),
    Nothing,
}

pub(super) fn get<E: Engine>(handle: &mut E, number: u64, now: Now, complete: &Complete) -> Found {
    let bytes = key(number);
    for _ in 0..1000 {
        handle.begin_batch(now);
        let hashed = HashedKey { bytes: &bytes, hash: handle.hash(&bytes) };
        let found = handle.get(hashed, Access::Untracked, |item| {
            let value = match &item.value {
                Value::Whole(bytes) => bytes.to_vec(),
                Value::Large(lease) => {
                    let mut value = Vec::new();
                    while value.len() < lease.len() {
                        value.extend_from_slice(lease.piece(value.len()));
                    }
                    value
                }
            };
            let last = value.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
            FoundItem {
                write: std::str::from_utf8(last).unwrap().parse().expect("a number"),
                value: crc(&value),
                client_flags: item.attributes.client_flags,
                stale: item.attributes.stale,
                cas: item.cas,
                left: item.attributes.expiry.left_millis(now),
            }
        });
        handle.end_batch();
        match found {
            Lookup::Pending => complete(),
            Lookup::Hit(shown) => return Found::Item(shown),
            Lookup::Miss | Lookup::Expired | Lookup::Flushed => return Found::Nothing,
        }
    }
    panic!("the item stays pending");
}

pub(super) fn key(number: u64) -> Vec<u8> {
    // Each key has a different length: 1000 bytes for number 0, and `number` bytes for the others.
    let len = if number == 0 { 1000 } else { number as usize };
    format!("{number:0>len$}").into_bytes()
}

pub(super) fn large(write: u64) -> Vec<u8> {
    let mut value = vec![b'x'; 40_000 + (write as usize * 7919) % 120_000];
    value.extend_from_slice(format!(" {write}").as_bytes());
    value
}

pub(super) fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
