//! zlib decompression. Other clients compress values with zlib.

use super::InvalidValue;
use bytes::Bytes;

/// Decompresses a value. Its decompressed length is limited to
/// [`DECOMPRESSED_LEN_MAX`](super::DECOMPRESSED_LEN_MAX).
#[cfg(feature = "compression")]
pub(super) fn inflate(bytes: &[u8]) -> Result<Bytes, InvalidValue> {
    use super::DECOMPRESSED_LEN_MAX;
    use flate2::read::ZlibDecoder;
    use std::io::Read;

    let mut value = Vec::new();
    let limit = DECOMPRESSED_LEN_MAX as u64 + 1;
    let read = ZlibDecoder::new(bytes).take(limit).read_to_end(&mut value);
    match read {
        Ok(len) if len > DECOMPRESSED_LEN_MAX => Err(InvalidValue::TooLong(DECOMPRESSED_LEN_MAX)),
        Ok(_) => Ok(value.into()),
        Err(_) => Err(InvalidValue::Damaged),
    }
}

#[cfg(not(feature = "compression"))]
pub(super) fn inflate(_: &[u8]) -> Result<Bytes, InvalidValue> {
    Err(InvalidValue::Compressed)
}
