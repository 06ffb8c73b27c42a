//! What a codec does, and what can go wrong.

use bytes::Bytes;
use std::error::Error;
use thiserror::Error as ThisError;

/// Why a value can't be encoded or decoded.
pub type CodecError = Box<dyn Error + Send + Sync>;

/// How values become bytes and flags, and come back.
///
/// ```
/// use larder_client::Bytes;
/// use larder_client::codec::{Codec, CodecError};
///
/// /// Points of the screen in four bytes.
/// struct Points;
///
/// impl Codec<(u16, u16)> for Points {
///     fn encode(&self, (x, y): &(u16, u16), bytes: &mut Vec<u8>) -> Result<u32, CodecError> {
///         bytes.extend([x.to_be_bytes(), y.to_be_bytes()].concat());
///         Ok(1)
///     }
///
///     fn decode(&self, bytes: &Bytes, _flags: u32) -> Result<(u16, u16), CodecError> {
///         let [a, b, c, d] = bytes[..].try_into()?;
///         Ok((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
///     }
/// }
/// ```
pub trait Codec<T> {
    /// Appends the bytes of a value; its flags. Bit 31 of the flags is that of `Compressed`.
    ///
    /// # Errors
    /// If it can't be encoded.
    fn encode(&self, value: &T, bytes: &mut Vec<u8>) -> Result<u32, CodecError>;

    /// A value from its bytes and flags, whoever has written them.
    ///
    /// # Errors
    /// If they are not those of a value.
    fn decode(&self, bytes: &Bytes, flags: u32) -> Result<T, CodecError>;
}

/// Why the codecs of this crate can't decode a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum InvalidValue {
    /// The flags say that something else has written it.
    #[error("flags of {0:#x} belong to another format")]
    Flags(u32),
    /// It is a value of another type, or an object of another language.
    #[error("the value has another type")]
    OtherType,
    /// Its bytes are not what its flags say.
    #[error("the value is damaged")]
    Damaged,
    /// It would be longer than the limit, after decompression.
    #[error("the value is longer than {0} bytes after decompression")]
    TooLong(usize),
    /// It is compressed.
    #[error("the value is compressed, which needs the feature `compression`")]
    Compressed,
}

/// How long a value may be after decompression, unless said otherwise: 32 MiB.
pub const DECOMPRESSED_LEN_MAX: usize = 32 << 20;
