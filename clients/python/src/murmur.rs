//! pymemcache's hash function for choosing a server.

use larder_client::ring::murmur3;
use pyo3::prelude::*;

/// Hashes the lowest byte of each character's code point with MurmurHash3, like pymemcache.
#[pyfunction]
#[pyo3(signature = (data, seed = 0))]
pub(crate) fn murmur3_32(data: &str, seed: u32) -> u32 {
    let bytes: Vec<u8> = data.chars().map(lowest_byte).collect();
    murmur3(&bytes, seed)
}

fn lowest_byte(character: char) -> u8 {
    let [lowest, ..] = u32::from(character).to_le_bytes();
    lowest
}
