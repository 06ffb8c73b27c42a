//! Script hashes. `EVALSHA` identifies a script by its hash.

use sha1::{Digest, Sha1};

/// The SHA-1 hash of a script's text, which identifies the script in `EVALSHA`.
pub type ScriptHash = [u8; 20];

/// Returns a hash in hexadecimal digits.
#[must_use]
pub fn hex(hash: &ScriptHash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the hash of a script's text.
#[must_use]
pub fn hash_of(text: &[u8]) -> ScriptHash {
    Sha1::digest(text).into()
}

/// Parses a hash in hexadecimal digits.
#[must_use]
pub fn parse_hash(digits: &[u8]) -> Option<ScriptHash> {
    let mut hash = [0; 20];
    if digits.len() != 2 * hash.len() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(
            str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'))?,
            16,
        )
        .ok()?;
    }
    Some(hash)
}
