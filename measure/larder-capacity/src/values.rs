//! Values that derive from their keys. The measurement can check returned values without storing
//! them.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// Number of possible start offsets of values in the pool.
const STARTS: usize = 1 << 20;

/// A pool of random bytes. A value is a slice of the pool, and the key determines its start offset.
#[derive(Debug)]
pub(crate) struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// Creates the pool for values of at most `len_max` bytes.
    pub(crate) fn new(len_max: usize) -> Self {
        let mut pool = vec![0; STARTS + len_max];
        Xoshiro256PlusPlus::seed_from_u64(1).fill_bytes(&mut pool);
        Self { pool }
    }

    /// Returns the value of the key with this number.
    pub(crate) fn value(&self, key: u32, len: usize) -> &[u8] {
        // Fibonacci hashing (Knuth 6.4): adjacent keys get offsets that are far apart.
        let start = key.wrapping_mul(0x9e37_79b9) as usize % STARTS;
        &self.pool[start..start + len]
    }

    /// Returns whether `found` is the value of this key for some length up to the maximum.
    pub(crate) fn is_right(&self, key: u32, found: &[u8]) -> bool {
        found.len() <= self.pool.len() - STARTS && self.value(key, found.len()) == found
    }
}
