//! The hash function of a cache: rapidhash with secrets that depend only on the cache's seed, so
//! that the same seed gives the same hashes in every process. The segment engine hashes keys in the
//! same way.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::BuildHasher;

/// Hashes keys with the secrets of a cache.
#[derive(Clone, Copy)]
pub(crate) struct Hasher {
    secrets: RapidSecrets,
}

/// The hash of one key.
pub(crate) struct KeyHasher {
    /// The cache's secrets. Hashing a part of the key updates their seed.
    secrets: RapidSecrets,
}

impl Hasher {
    /// Returns a hasher whose secrets are derived from `seed`. If clients choose the keys, the seed
    /// must be secret.
    pub(crate) fn new(seed: u64) -> Self {
        Self { secrets: RapidSecrets::seed(seed) }
    }
}

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

impl BuildHasher for Hasher {
    type Hasher = KeyHasher;

    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { secrets: self.secrets }
    }
}

impl std::hash::Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.secrets.seed = rapidhash_v3_seeded(bytes, &self.secrets);
    }

    /// Ignores the length of a key, which `Hash` writes before the bytes of the key. The hash of
    /// the bytes already depends on their number.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.secrets.seed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed gives the same hashes in every process, so the test compares with a constant.
    #[test]
    fn a_seed_determines_the_hashes() {
        let hash = |seed, key: &[u8]| Hasher::new(seed).hash_one(key);
        let secrets = RapidSecrets::seed(7);
        for len in [0, 1, 3, 8, 16, 17, 100, 1024] {
            let key = vec![b'k'; len];
            assert_eq!(hash(7, &key), rapidhash_v3_seeded(&key, &secrets));
            assert_ne!(hash(7, &key), hash(8, &key));
            // Maps store keys of other types, whose hashes must be the same.
            assert_eq!(hash(7, &key), Hasher::new(7).hash_one(&key));
            assert_eq!(hash(7, &key), Hasher::new(7).hash_one(key.into_boxed_slice()));
        }
        assert_eq!(hash(7, b"key"), 9_737_992_624_913_992_903);
    }

    /// Checks that another cache seed changes both the hash seed and the secrets. If only the hash
    /// seed changed, an attacker could construct keys that collide under every seed.
    #[test]
    fn secrets_follow_from_the_seed() {
        let (one, other) = (Hasher::new(1).secrets, Hasher::new(2).secrets);
        assert_ne!(one.seed, other.seed);
        assert!(one.secrets.iter().zip(other.secrets).all(|(one, other)| *one != other));
    }
}
