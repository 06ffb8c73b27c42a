//! The codec interface and its errors.

use bytes::Bytes;
use std::error::Error;
use thiserror::Error as ThisError;

/// An encoding or decoding error.
pub type CodecError = Box<dyn Error + Send + Sync>;

/// Converts values of type `T` to bytes and flags, and back.
///
/// ```
/// use larder_client::Bytes;
/// use larder_client::codec::{Codec, CodecError};
///
/// /// A codec that stores a screen coordinate in four bytes.
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
    /// Appends the bytes of a value and returns its flags. Bit 31 of the flags is reserved for
    /// `Compressed`.
    ///
    /// # Errors
    /// The value cannot be encoded.
    fn encode(&self, value: &T, bytes: &mut Vec<u8>) -> Result<u32, CodecError>;

    /// Decodes a value. The input is untrusted, because any program may have written the item.
    ///
    /// # Errors
    /// The bytes and flags are not an encoded value.
    fn decode(&self, bytes: &Bytes, flags: u32) -> Result<T, CodecError>;
}

/// Errors of this crate's codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum InvalidValue {
    /// The flags belong to another format.
    #[error("flags of {0:#x} belong to another format")]
    Flags(u32),
    /// The value has another type, or it is an object of another language. With dalli, it may also
    /// be a number that does not fit in 64 bits, or a string in an encoding other than UTF-8 and
    /// US-ASCII.
    #[error("the value has another type")]
    OtherType,
    /// The bytes do not match the flags.
    #[error("the value is corrupt")]
    Damaged,
    /// The value is longer than the limit after decompression.
    #[error("the value is longer than {0} bytes after decompression")]
    TooLong(usize),
    /// The value is compressed, and the feature `compression` is off.
    #[error("the value is compressed: enable the feature `compression`")]
    Compressed,
}

/// The maximum decompressed length of a value: 32 MiB. `Compressed` uses it as its default limit,
/// and `Convention` as its fixed limit.
pub const DECOMPRESSED_LEN_MAX: usize = 32 << 20;
