//! Key hash functions of other clients.

use super::murmur3::murmur3;
use md5::{Digest, Md5};

/// A 32-bit hash function of keys.
///
/// The variants include libmemcached's functions for `MEMCACHED_BEHAVIOR_HASH` (pylibmc: `hash`),
/// except `jenkins` and `hsieh`. They also include the functions of spymemcached's
/// `DefaultHashAlgorithm`, for ASCII keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyHash {
    /// Bob Jenkins' one-at-a-time: libmemcached's default.
    #[default]
    OneAtATime,
    /// The first four bytes of MD5, little-endian: libmemcached's `md5`, spymemcached's
    /// `KETAMA_HASH`.
    Md5,
    /// Bits 16 to 30 of CRC-32: libmemcached's `crc`, spymemcached's `CRC_HASH`. Distributes keys
    /// well only with `Modula`.
    Crc,
    /// CRC-32 (IEEE), as in gomemcache.
    Crc32,
    /// FNV-1, 32 bits: libmemcached's `fnv1_32`, spymemcached's `FNV1_32_HASH`.
    Fnv32,
    /// FNV-1a, 32 bits: libmemcached's `fnv1a_32`, spymemcached's `FNV1A_32_HASH`.
    Fnv32a,
    /// The lower half of 64-bit FNV-1, which mixes badly: libmemcached's `fnv1_64`, spymemcached's
    /// `FNV1_64_HASH`.
    Fnv64,
    /// The lower half of 64-bit FNV-1a, which mixes badly: libmemcached's `fnv1a_64`,
    /// spymemcached's `FNV1A_64_HASH`.
    Fnv64a,
    /// MurmurHash2 with a seed that depends on the length: libmemcached's `murmur`.
    Murmur,
    /// MurmurHash3 with a seed that depends on the length: libmemcached's `murmur3`.
    Murmur3,
    /// Java's `String.hashCode`: spymemcached's default, `NATIVE_HASH`.
    Java,
}

const FNV_32: (u32, u32) = (0x811c_9dc5, 0x0100_0193);
/// The lower 32 bits of 64-bit FNV's offset basis and prime. The lower 32 bits of a hash do not
/// depend on the upper bits of these constants.
const FNV_64: (u32, u32) = (0x8422_2325, 0x0000_01b3);

impl KeyHash {
    pub(super) fn hash(self, key: &[u8]) -> u32 {
        match self {
            Self::OneAtATime => one_at_a_time(key),
            Self::Md5 => {
                let [a, b, c, d, ..]: [u8; 16] = Md5::digest(key).into();
                u32::from_le_bytes([a, b, c, d])
            }
            Self::Crc => crc32fast::hash(key) >> 16 & 0x7fff,
            Self::Crc32 => crc32fast::hash(key),
            Self::Fnv32 => fnv1(FNV_32, key),
            Self::Fnv32a => fnv1a(FNV_32, key),
            Self::Fnv64 => fnv1(FNV_64, key),
            Self::Fnv64a => fnv1a(FNV_64, key),
            Self::Murmur => murmur2(key),
            Self::Murmur3 => murmur3(key, seed_of_length(key)),
            Self::Java => key
                .iter()
                .fold(0, |hash: u32, byte| hash.wrapping_mul(31).wrapping_add(u32::from(*byte))),
        }
    }
}

/// Sign-extends a byte. libmemcached reads bytes as `char`, which is signed on most machines.
fn signed(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = 0_u32;
    for byte in key {
        hash = hash.wrapping_add(signed(*byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

fn fnv1((basis, prime): (u32, u32), key: &[u8]) -> u32 {
    key.iter().fold(basis, |hash, byte| hash.wrapping_mul(prime) ^ signed(*byte))
}

fn fnv1a((basis, prime): (u32, u32), key: &[u8]) -> u32 {
    key.iter().fold(basis, |hash, byte| (hash ^ signed(*byte)).wrapping_mul(prime))
}

#[expect(clippy::cast_possible_truncation, reason = "keys are short")]
fn seed_of_length(key: &[u8]) -> u32 {
    0xdead_beef_u32.wrapping_mul(key.len() as u32)
}

#[expect(clippy::cast_possible_truncation, reason = "keys are short")]
fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let (words, rest) = key.as_chunks::<4>();
    let mut hash = seed_of_length(key) ^ key.len() as u32;
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ word >> 24).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash = (hash ^ last).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&[u8]; 9] = [
        b"",
        b"a",
        b"ab",
        b"abc",
        b"abcd",
        b"abcde",
        "schlüssel".as_bytes(),
        b"\xff\xfe\xfd",
        b"the quick brown fox jumps",
    ];

    /// The expected hashes are from `libhashkit_digest` of libmemcached 1.1.4 (x86-64).
    #[test]
    #[rustfmt::skip]
    fn hashes_equal_those_of_libmemcached() {
        check(KeyHash::OneAtATime, [0x0000_0000, 0xca2e_9442, 0x45e6_1e58, 0xed13_1f5b, 0xcd8b_6206, 0xb985_59fc, 0xd21f_7d6f, 0x4755_49b8, 0xd38e_11e2]);
        check(KeyHash::Md5, [0xd98c_1dd4, 0xb975_c10c, 0x43f4_7e18, 0x9850_0190, 0x4c71_fce2, 0xd9b4_56ab, 0x0bb0_8626, 0xc24e_6789, 0x2877_0017]);
        check(KeyHash::Crc, [0x0000, 0x68b7, 0x1e83, 0x3524, 0x6d82, 0x0587, 0x65fa, 0x08ea, 0x67a2]);
        check(KeyHash::Fnv64, [0x8422_2325, 0x8601_b7be, 0xb4eb_37b8, 0x6baf_adcb, 0xfb84_4f95, 0x61d3_3a4a, 0xdcd8_9e57, 0x93ed_f087, 0xd789_f803]);
        check(KeyHash::Fnv64a, [0x8422_2325, 0x8601_ec8c, 0xb545_986a, 0x0541_574b, 0xee07_24dd, 0x7623_64a8, 0x18ea_ec47, 0x8f0e_92d7, 0x32df_f6e7]);
        check(KeyHash::Fnv32, [0x811c_9dc5, 0x050c_5d7e, 0x7077_2d38, 0x439c_2f4b, 0xb9de_7375, 0x0e2f_c14a, 0xb880_2a77, 0x914c_9107, 0xfaa8_fba3]);
        check(KeyHash::Fnv32a, [0x811c_9dc5, 0xe40c_292c, 0x4d25_05ca, 0x1a47_e90b, 0xce34_79bd, 0x749b_cf08, 0x650a_aae7, 0xbf6d_4517, 0x8c22_ab07]);
        check(KeyHash::Murmur, [0x0000_0000, 0x4b41_757c, 0xe3b5_4dfb, 0x7b0c_c428, 0xef6a_86af, 0x9a26_3eda, 0x79cf_82ad, 0xc2e4_b7ff, 0x86af_cafc]);
        check(KeyHash::Murmur3, [0x0000_0000, 0x8872_dbc8, 0x820b_9d10, 0x25d3_a89a, 0x0ac2_8782, 0x3ed4_8523, 0xbf0c_a05f, 0x92ff_29ea, 0x1cf1_b169]);
    }

    fn check(function: KeyHash, expected: [u32; 9]) {
        assert_eq!(KEYS.map(|key| function.hash(key)), expected, "{function:?}");
    }
}
