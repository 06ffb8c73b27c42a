//! Mutual authentication of nodes by a shared secret, which is never sent.
//!
//! A proof is an HMAC-SHA256 (RFC 2104) over the name of the proving side and the nonces of both
//! sides. So a proof is valid for one side of one connection only. The secret does not encrypt the
//! stream.
//!
//! etcd stores a fingerprint of the secret. When a process starts, it compares its own fingerprint
//! with the stored one to detect a wrong secret.

use crate::frame::Nonce;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// The minimum length of a secret, in bytes.
pub const SECRET_LEN_MIN: usize = 16;

/// The number of PBKDF2 iterations for a fingerprint.
const ROUNDS: u32 = 100_000;

/// A cluster secret. Its debug output does not contain the secret.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that accepts the connection.
    Leader,
    /// The side that opens the connection.
    Follower,
}

impl Secret {
    /// Reads a secret from the contents of a file, without leading and trailing ASCII white space.
    /// Returns `None` if fewer than [`SECRET_LEN_MIN`] bytes remain.
    #[must_use]
    pub fn of(file: &[u8]) -> Option<Self> {
        let secret = file.trim_ascii();
        (secret.len() >= SECRET_LEN_MIN).then(|| Self(secret.to_vec()))
    }

    /// Computes a fingerprint with PBKDF2 (RFC 8018), for storage that others can read. The
    /// [`ROUNDS`] rounds make it slow to guess the secret from the fingerprint.
    #[must_use]
    pub fn fingerprint(&self, salt: &[u8]) -> [u8; 8] {
        pbkdf2::pbkdf2_hmac_array::<Sha256, 8>(&self.0, salt, ROUNDS)
    }

    fn mac(&self, side: Side, follower: &Nonce, leader: &Nonce) -> Option<Hmac<Sha256>> {
        // HMAC accepts a key of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(match side {
            Side::Leader => b"larder replication: leader",
            Side::Follower => b"larder replication: follower",
        });
        mac.update(follower);
        mac.update(leader);
        Some(mac)
    }

    /// Computes the proof of one side.
    #[must_use]
    pub fn proof(&self, side: Side, follower: &Nonce, leader: &Nonce) -> [u8; 32] {
        let mac = self.mac(side, follower, leader);
        mac.map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Verifies a proof in constant time.
    #[must_use]
    pub fn is_proven(
        &self,
        proof: &[u8; 32],
        side: Side,
        follower: &Nonce,
        leader: &Nonce,
    ) -> bool {
        let mac = self.mac(side, follower, leader);
        mac.is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_valid_for_one_side_one_connection_and_one_secret() {
        let secret = Secret::of(b"  correct horse battery\n").unwrap();
        let (follower, leader) = ([1; 32], [2; 32]);
        let proof = secret.proof(Side::Leader, &follower, &leader);
        assert!(secret.is_proven(&proof, Side::Leader, &follower, &leader));
        assert!(!secret.is_proven(&proof, Side::Follower, &follower, &leader));
        assert!(!secret.is_proven(&proof, Side::Leader, &[3; 32], &leader));
        assert!(!secret.is_proven(&proof, Side::Leader, &follower, &[3; 32]));
        let other = Secret::of(b"another horse battery").unwrap();
        assert!(!other.is_proven(&proof, Side::Leader, &follower, &leader));
        // Computed with Python's hashlib.pbkdf2_hmac.
        let fingerprint = u64::from_be_bytes(secret.fingerprint(b"salt"));
        assert_eq!(fingerprint, 0xcbed_1aec_d599_a3a6);
        assert_eq!(format!("{secret:?}"), "Secret");
        assert!(Secret::of(b"short         \n\n\n").is_none());
    }
}
