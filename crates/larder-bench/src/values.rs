//! Values that derive from their keys, so that what comes back can be told from what should.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// More than the values that begin at different places.
const STARTS: usize = 1 << 20;

/// Bytes that do not compress, of which each value is a slice that begins where its key says.
#[derive(Debug)]
pub(crate) struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// Values of at most `len_max` bytes.
    pub(crate) fn new(len_max: usize) -> Self {
        let mut pool = vec![0; STARTS + len_max];
        Xoshiro256PlusPlus::seed_from_u64(1).fill_bytes(&mut pool);
        Self { pool }
    }

    /// The value of the key with this number.
    pub(crate) fn value(&self, key: u32, len: usize) -> &[u8] {
        // 2^32 / φ, odd: neighbours are far apart.
        let start = key.wrapping_mul(0x9e37_79b9) as usize % STARTS;
        &self.pool[start..start + len]
    }

    /// Whether `found` is the key's value, whatever its length.
    pub(crate) fn is_right(&self, key: u32, found: &[u8]) -> bool {
        found.len() <= self.pool.len() - STARTS && self.value(key, found.len()) == found
    }
}
