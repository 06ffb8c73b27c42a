//! LZ4 compression.

use super::{Codec, CodecError, DECOMPRESSED_LEN_MAX, InvalidValue};
use bytes::Bytes;
use lz4_flex::block::{compress_prepend_size, decompress_into, uncompressed_size};

/// A codec that compresses the output of another codec with LZ4. It compresses an output only if
/// the output's length is from 2 KiB to the [`limit`](Self::limit) and compression saves at least a
/// tenth of the length.
///
/// Bit 31 of the flags marks compressed values. A compressed value consists of the uncompressed
/// length (four bytes, little-endian) and an LZ4 block.
///
/// ```
/// use larder_client::codec::{Codec, Compressed, Convention};
///
/// let codec = Compressed::new(Convention::Pymemcache);
/// let mut bytes = Vec::new();
/// let flags = codec.encode(&"a".repeat(10_000), &mut bytes)?;
/// assert!(bytes.len() < 100);
/// let text: String = codec.decode(&bytes.into(), flags)?;
/// assert_eq!(text.len(), 10_000);
/// # Ok::<(), larder_client::codec::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed<C> {
    codec: C,
    len_max: usize,
}

const FLAG: u32 = 1 << 31;
/// The minimum length of a value to compress, in bytes. Compressing shorter values saves too little
/// memory.
const LEN_MIN: usize = 2 << 10;
/// The largest compression ratio of LZ4. `decompress` rejects a value that declares a higher ratio
/// before it allocates memory.
const RATIO_MAX: usize = 255;

impl<C> Compressed<C> {
    /// Creates a codec that compresses the output of `codec`.
    pub fn new(codec: C) -> Self {
        Self { codec, len_max: DECOMPRESSED_LEN_MAX }
    }

    /// Limits the decompressed length of compressed values, in bytes. Decoding a longer value fails
    /// with [`InvalidValue::TooLong`] before it allocates memory. Encoding leaves longer values
    /// uncompressed. [Default: [`DECOMPRESSED_LEN_MAX`]]
    #[must_use]
    pub fn limit(self, len_max: usize) -> Self {
        Self { len_max, ..self }
    }

    fn decompress(&self, bytes: &[u8]) -> Result<Bytes, InvalidValue> {
        let (len, block) = uncompressed_size(bytes).map_err(|_| InvalidValue::Damaged)?;
        if len > self.len_max {
            return Err(InvalidValue::TooLong(self.len_max));
        }
        if len / RATIO_MAX > block.len() {
            return Err(InvalidValue::Damaged);
        }
        let mut value = vec![0; len];
        match decompress_into(block, &mut value) {
            Ok(written) if written == len => Ok(value.into()),
            _ => Err(InvalidValue::Damaged),
        }
    }
}

impl<T, C: Codec<T>> Codec<T> for Compressed<C> {
    fn encode(&self, value: &T, bytes: &mut Vec<u8>) -> Result<u32, CodecError> {
        let begin = bytes.len();
        let flags = self.codec.encode(value, bytes)?;
        let plain = bytes.get(begin..).unwrap_or_default();
        if plain.len() < LEN_MIN || plain.len() > self.len_max {
            return Ok(flags);
        }
        let compressed = compress_prepend_size(plain);
        if compressed.len() > plain.len() - plain.len() / 10 {
            return Ok(flags);
        }
        bytes.truncate(begin);
        bytes.extend_from_slice(&compressed);
        Ok(flags | FLAG)
    }

    fn decode(&self, bytes: &Bytes, flags: u32) -> Result<T, CodecError> {
        if flags & FLAG == 0 {
            return self.codec.decode(bytes, flags);
        }
        self.codec.decode(&self.decompress(bytes)?, flags & !FLAG)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Convention;
    use super::*;
    use proptest::prelude::*;

    const CODEC: Compressed<Convention> =
        Compressed { codec: Convention::Pymemcache, len_max: 100_000 };

    fn encode(value: Vec<u8>) -> (Vec<u8>, u32) {
        let mut bytes = Vec::new();
        let flags = CODEC.encode(&value, &mut bytes).unwrap();
        let back: Vec<u8> = CODEC.decode(&bytes.clone().into(), flags).unwrap();
        assert_eq!(back, value);
        (bytes, flags)
    }

    /// Returns incompressible bytes.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn values_are_compressed_if_that_saves_a_tenth() {
        for (value, is_compressed) in [
            (vec![7; LEN_MIN - 1], false),
            (vec![7; LEN_MIN], true),
            (noise(LEN_MIN), false),
            ([noise(9_500), vec![7; 500]].concat(), false),
            ([noise(8_500), vec![7; 1_500]].concat(), true),
            (vec![7; 100_000], true),
            (vec![7; 100_001], false),
        ] {
            let len = value.len();
            let (bytes, flags) = encode(value);
            assert_eq!(flags & FLAG != 0, is_compressed, "{len}");
            assert!(if is_compressed { bytes.len() <= len - len / 10 } else { bytes.len() == len });
        }
    }

    #[test]
    fn hostile_lengths_allocate_no_memory() {
        let (bytes, flags) = encode(vec![7; 50_000]);
        let decode = |bytes: &[u8]| -> InvalidValue {
            let decoded: Result<Vec<u8>, _> = CODEC.decode(&Bytes::copy_from_slice(bytes), flags);
            *decoded.unwrap_err().downcast().unwrap()
        };
        let with_len = |len: u32| [&len.to_le_bytes(), &bytes[4..]].concat();
        assert_eq!(decode(&with_len(u32::MAX)), InvalidValue::TooLong(100_000));
        assert_eq!(decode(&with_len(100_000)), InvalidValue::Damaged);
        assert_eq!(decode(&with_len(49_999)), InvalidValue::Damaged);
        assert_eq!(decode(&[0x86, 1, 0, 0, 1]), InvalidValue::Damaged);
        assert_eq!(decode(b"abc"), InvalidValue::Damaged);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _: Result<Vec<u8>, _> = CODEC.decode(&bytes.into(), FLAG);
        }
    }
}
