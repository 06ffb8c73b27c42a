//! Encodings of keys and values.

use std::error::Error;

/// A codec that encodes keys and values as bytes, and decodes values.
///
/// Two keys must have the same bytes if and only if they are equal.
///
/// ```
/// use larder_cache::{Cache, Codec, Typed};
///
/// /// Encodes numbers in eight bytes.
/// #[derive(Clone)]
/// struct Fixed;
///
/// impl Codec<u64, u64> for Fixed {
///     type Error = std::array::TryFromSliceError;
///
///     fn encode_key(&self, key: &u64, bytes: &mut Vec<u8>) -> Result<(), Self::Error> {
///         bytes.extend_from_slice(&key.to_be_bytes());
///         Ok(())
///     }
///
///     fn encode(&self, value: &u64, bytes: &mut Vec<u8>) -> Result<(), Self::Error> {
///         self.encode_key(value, bytes)
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<u64, Self::Error> {
///         bytes.try_into().map(u64::from_be_bytes)
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let squares = Typed::with_codec(Cache::builder().build()?, Fixed);
/// squares.insert(&9, &81)?;
/// assert_eq!(squares.get(&9), Some(81));
/// # Ok(())
/// # }
/// ```
pub trait Codec<K: ?Sized, V> {
    /// The error of encoding or decoding.
    type Error: Error + Send + Sync + 'static;

    /// Appends the encoded key. Together with [`crate::Typed::prefix`], a key must have 1 to
    /// [`crate::KEY_LEN_MAX`] bytes.
    ///
    /// # Errors
    /// The key can't be encoded.
    fn encode_key(&self, key: &K, bytes: &mut Vec<u8>) -> Result<(), Self::Error>;

    /// Appends the encoded bytes of a value.
    ///
    /// # Errors
    /// The value can't be encoded.
    fn encode(&self, value: &V, bytes: &mut Vec<u8>) -> Result<(), Self::Error>;

    /// Decodes a value.
    ///
    /// # Errors
    /// The bytes do not encode a value.
    fn decode(&self, bytes: &[u8]) -> Result<V, Self::Error>;
}

/// The short and fast encoding of [postcard](https://docs.rs/postcard), for types that implement
/// serde's traits. The bytes contain no type information, so a value of one type may decode as
/// another type with a wrong value. This happens only if two types share a key, because no cache
/// outlives its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Postcard;

impl<K, V> Codec<K, V> for Postcard
where
    K: serde::Serialize + ?Sized,
    V: serde::Serialize + serde::de::DeserializeOwned,
{
    type Error = postcard::Error;

    fn encode_key(&self, key: &K, bytes: &mut Vec<u8>) -> Result<(), Self::Error> {
        append(key, bytes)
    }

    fn encode(&self, value: &V, bytes: &mut Vec<u8>) -> Result<(), Self::Error> {
        append(value, bytes)
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, Self::Error> {
        postcard::from_bytes(bytes)
    }
}

/// A codec that can also decode keys, for [`crate::Typed::keys`].
pub trait DecodeKey<K: ?Sized> {
    /// A key that owns its data: `String` for keys of the type `str`.
    type Owned;

    /// Decodes the bytes that [`Codec::encode_key`] has appended. Returns `None` if the bytes do
    /// not encode a key of this type.
    fn decode_key(&self, bytes: &[u8]) -> Option<Self::Owned>;
}

impl<K> DecodeKey<K> for Postcard
where
    K: ToOwned + ?Sized,
    K::Owned: serde::de::DeserializeOwned,
{
    type Owned = K::Owned;

    fn decode_key(&self, bytes: &[u8]) -> Option<K::Owned> {
        let (key, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(key)
    }
}

fn append<T: serde::Serialize + ?Sized>(
    value: &T,
    bytes: &mut Vec<u8>,
) -> Result<(), postcard::Error> {
    *bytes = postcard::to_extend(value, std::mem::take(bytes))?;
    Ok(())
}
