//! Helpers for the tests of the store: times, values that can be checked, and reproducible random
//! numbers.
#![allow(dead_code, reason = "no suite uses all helpers")]

use larder_store::{Attributes, Engine, Expiry, HashedKey, Lease, Seconds};

pub(crate) const START: Seconds = Seconds(1_700_000_000);

pub(crate) fn after(secs: u32) -> Seconds {
    Seconds(START.0 + secs)
}

pub(crate) fn expiring(at: Seconds) -> Attributes {
    Attributes { expiry: Expiry::At(at), ..Attributes::default() }
}

pub(crate) fn hashed<'k>(engine: &impl Engine, bytes: &'k [u8]) -> HashedKey<'k> {
    HashedKey { bytes, hash: engine.hash(bytes) }
}

pub(crate) fn read_lease(lease: &impl Lease) -> Vec<u8> {
    let mut all = Vec::with_capacity(lease.len());
    while all.len() < lease.len() {
        let piece = lease.piece(all.len());
        assert!(!piece.is_empty(), "an empty piece before the end, at {}", all.len());
        all.extend_from_slice(piece);
    }
    assert_eq!(all.len(), lease.len());
    all
}

/// Returns pseudorandom bytes that depend only on the seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes: Vec<u8> =
        (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// A generator of pseudorandom numbers: xorshift64*.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap()
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next_u32() as usize % end
    }
}
