//! Keys in base64 with the standard alphabet. The encoding must be padded and canonical.

use crate::request::{KEY_LEN_MAX, Key};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The length of an encoded key of [`KEY_LEN_MAX`] bytes.
const ENCODED_LEN_MAX: usize = KEY_LEN_MAX.div_ceil(3) * 4;

impl<'b> Key<'b> {
    /// Returns the decoded key. A key that was sent in base64 is decoded into `scratch`.
    #[inline]
    pub fn decode<'k>(&self, scratch: &'k mut [u8; KEY_LEN_MAX]) -> &'k [u8]
    where
        'b: 'k,
    {
        if self.base64 { decode(self.wire, scratch).unwrap_or(self.wire) } else { self.wire }
    }
}

/// Decodes a key; `None` if `encoded` is empty, malformed or too long.
pub(crate) fn decode<'k>(encoded: &[u8], scratch: &'k mut [u8; KEY_LEN_MAX]) -> Option<&'k [u8]> {
    // The decoder requires space for a full last group (three bytes), even if padding makes this
    // group shorter.
    let mut room = [0; KEY_LEN_MAX + 3];
    let len = STANDARD.decode_slice(encoded, &mut room).ok().filter(|&len| len > 0)?;
    let (from, to) = (room.get(..len)?, scratch.get_mut(..len)?);
    to.copy_from_slice(from);
    Some(to)
}

/// Writes `key`, which has at most [`KEY_LEN_MAX`] bytes, in base64.
pub(crate) fn encode(key: &[u8], out: &mut Vec<u8>) {
    let mut encoded = [0; ENCODED_LEN_MAX];
    if let Ok(len) = STANDARD.encode_slice(key, &mut encoded) {
        out.extend_from_slice(encoded.get(..len).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding() {
        for len in 1..=186_u8 {
            let key: Vec<u8> = (0..len).collect();
            let mut encoded = Vec::new();
            encode(&key, &mut encoded);
            assert_eq!(decode(&encoded, &mut [0; KEY_LEN_MAX]), Some(&key[..]));
        }
    }

    #[test]
    fn base64_that_is_not_canonical_is_refused() {
        for bad in ["", "a", "Zm9v=", "Zm9vYg", "Zm9vYh==", "Zm 9v", "===="] {
            assert_eq!(decode(bad.as_bytes(), &mut [0; KEY_LEN_MAX]), None, "{bad}");
        }
    }
}
