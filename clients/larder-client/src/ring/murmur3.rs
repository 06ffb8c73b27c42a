//! MurmurHash3 (x86, 32 bits) by Austin Appleby.

/// Computes `MurmurHash3_x86_32`, like pymemcache's `murmur3_32`.
///
/// ```
/// assert_eq!(larder_client::ring::murmur3(b"test", 0), 0xba6b_d213);
/// ```
#[must_use]
pub fn murmur3(bytes: &[u8], seed: u32) -> u32 {
    Murmur3::new(seed).update(bytes).finish()
}

/// An unfinished hash. To hash many inputs with a common prefix, a caller hashes the prefix once
/// and continues each input from a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Murmur3 {
    state: u32,
    /// Up to three bytes that do not fill a 32-bit block yet. The next `update` mixes in these
    /// bytes.
    pending: u32,
    pending_bits: u32,
    len: u32,
}

impl Murmur3 {
    pub(super) fn new(seed: u32) -> Self {
        Self { state: seed, pending: 0, pending_bits: 0, len: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "both halves are used; names are short")]
    pub(super) fn update(mut self, bytes: &[u8]) -> Self {
        self.len = self.len.wrapping_add(bytes.len() as u32);
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            let both = u64::from(u32::from_le_bytes(*word)) << self.pending_bits;
            self.mix(self.pending | both as u32);
            self.pending = (both >> 32) as u32;
        }
        for byte in rest {
            self.pending |= u32::from(*byte) << self.pending_bits;
            self.pending_bits += 8;
            if self.pending_bits == 32 {
                self.mix(self.pending);
                (self.pending, self.pending_bits) = (0, 0);
            }
        }
        self
    }

    fn mix(&mut self, word: u32) {
        self.state ^= scramble(word);
        self.state = self.state.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }

    pub(super) fn finish(self) -> u32 {
        let mut hash = self.state ^ scramble(self.pending) ^ self.len;
        hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
        hash ^ hash >> 16
    }
}

fn scramble(word: u32) -> u32 {
    word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_equal_those_of_the_original() {
        for (input, seed, hash) in [
            ("", 0, 0),
            ("", 1, 0x514e_28b7),
            ("Hello, world!", 0, 0xc036_3e43),
            ("The quick brown fox jumps over the lazy dog", 0x9747_b28c, 0x2fa8_26cd),
        ] {
            assert_eq!(murmur3(input.as_bytes(), seed), hash, "{input:?}");
        }
    }

    #[test]
    fn input_may_come_in_pieces() {
        let input = b"127.0.0.1:11211-user:1";
        let whole = Murmur3::new(7).update(input).finish();
        for cut in 0..=input.len() {
            let (begin, end) = input.split_at(cut);
            assert_eq!(Murmur3::new(7).update(begin).update(end).finish(), whole, "{cut}");
        }
    }
}
