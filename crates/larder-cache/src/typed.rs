//! A cache of values that are encoded as bytes.

use crate::cache::Cache;
use crate::insert::{InsertError, InsertOptions};
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;

/// A conversion of keys and values to bytes, and of bytes to values.
///
/// Two keys must have the same bytes if and only if they are equal.
///
/// ```
/// use larder_cache::{Cache, Codec, Typed};
///
/// /// Numbers in eight bytes.
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

    /// Appends the bytes of a key: 1 to [`crate::KEY_LEN_MAX`], including the bytes of
    /// [`Typed::prefix`].
    ///
    /// # Errors
    /// The key can't be encoded.
    fn encode_key(&self, key: &K, bytes: &mut Vec<u8>) -> Result<(), Self::Error>;

    /// Appends the bytes of a value.
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

/// The encoding of [postcard](https://docs.rs/postcard), for types that implement serde's traits:
/// short and fast. The bytes contain no type information, so a value of one type may decode as
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

fn append<T: serde::Serialize + ?Sized>(
    value: &T,
    bytes: &mut Vec<u8>,
) -> Result<(), postcard::Error> {
    *bytes = postcard::to_extend(value, std::mem::take(bytes))?;
    Ok(())
}

/// A [`Cache`] of values of one type. It encodes values when they are stored, and decodes them when
/// they are read.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use larder_cache::{Cache, Typed};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// struct User {
///     name: String,
///     visits: u32,
/// }
///
/// let cache = Cache::builder().memory(64 << 20).build()?;
/// // Several types can share a cache if each has its own prefix.
/// let users: Typed<u64, User> = Typed::new(cache.clone()).prefix("user:");
/// let names: Typed<str, u64> = Typed::new(cache).prefix("name:");
///
/// users.insert(&7, &User { name: "Ada".into(), visits: 1 })?;
/// names.insert("Ada", &7)?;
/// let number = names.get("Ada").unwrap();
/// assert_eq!(users.get(&number).unwrap().visits, 1);
///
/// let made = users.get_or_insert_with(&8, || User { name: "Bob".into(), visits: 0 });
/// assert_eq!(made.name, "Bob");
/// # Ok(())
/// # }
/// ```
pub struct Typed<K: ?Sized, V, C = Postcard> {
    cache: Cache,
    codec: C,
    prefix: Box<[u8]>,
    types: PhantomData<fn(&K) -> V>,
}

impl<K: ?Sized, V> Typed<K, V> {
    /// Creates a typed view of `cache`, whose values [`Postcard`] encodes.
    #[must_use]
    pub fn new(cache: Cache) -> Self {
        Self::with_codec(cache, Postcard)
    }
}

impl<K: ?Sized, V, C> Typed<K, V, C> {
    /// Creates a typed view of `cache`, whose values `codec` encodes.
    #[must_use]
    pub fn with_codec(cache: Cache, codec: C) -> Self {
        Self { cache, codec, prefix: Box::default(), types: PhantomData }
    }

    /// Adds `prefix` before all keys, which separates them from other keys in the same cache.
    #[must_use]
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Self {
        Self { prefix: prefix.as_ref().into(), ..self }
    }

    /// Returns the cache of bytes.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

impl<K: ?Sized, V, C: Codec<K, V>> Typed<K, V, C> {
    /// Returns the value under `key`, or `None` if there is no value or the codec can't encode the
    /// key. Also returns `None` if the codec can't decode the value, which may belong to another
    /// type with the same key bytes.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        let key = self.encode_key(key).ok()?;
        self.cache.read(key, |bytes| self.codec.decode(bytes).ok())?
    }

    /// Returns whether there is a value under `key`, of this type or another. See
    /// [`Cache::contains`].
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.encode_key(key).is_ok_and(|key| self.cache.contains(key))
    }

    /// Stores `value` under `key`. Replaces an existing value.
    ///
    /// # Errors
    /// [`TypedError`]: the value was not stored. An old value under the key was removed, if the key
    /// can be encoded.
    pub fn insert(&self, key: &K, value: &V) -> Result<(), TypedError<C::Error>> {
        self.insert_with(key, value, InsertOptions::new())
    }

    /// Stores `value`, like [`Typed::insert`], with options such as an expiry.
    ///
    /// # Errors
    /// [`TypedError`]: the value was not stored. An old value under the key was removed, if the key
    /// can be encoded.
    pub fn insert_with(
        &self,
        key: &K,
        value: &V,
        options: InsertOptions,
    ) -> Result<(), TypedError<C::Error>> {
        let key = self.encode_key(key).map_err(TypedError::Encode)?;
        let mut bytes = Vec::new();
        if let Err(error) = self.codec.encode(value, &mut bytes) {
            self.cache.remove(key);
            return Err(TypedError::Encode(error));
        }
        self.cache.insert_with(key, bytes, options).map_err(TypedError::Insert)
    }

    /// Removes the value under `key`. Returns whether it existed.
    pub fn remove(&self, key: &K) -> bool {
        self.encode_key(key).is_ok_and(|key| self.cache.remove(key))
    }

    /// Returns the value under `key`. If there is none, calls `make`, and stores and returns the
    /// value that it makes. See [`Cache::get_or_insert_with`] about makers.
    pub fn get_or_insert_with(&self, key: &K, make: impl FnOnce() -> V) -> V {
        let made =
            self.try_get_or_insert_with(key, InsertOptions::new(), || Ok::<_, Infallible>(make()));
        made.unwrap_or_else(|error| match error {})
    }

    /// Does the same as [`Typed::get_or_insert_with`], for makers that may fail, and with options
    /// such as an expiry. If the codec can't encode the key or the value, the call returns the
    /// value without storing it.
    ///
    /// # Errors
    /// The error of this call's own `make`.
    pub fn try_get_or_insert_with<E>(
        &self,
        key: &K,
        options: InsertOptions,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let Ok(bytes) = self.encode_key(key) else { return make() };
        if let Some(Ok(value)) = self.cache.read(&bytes, |bytes| self.codec.decode(bytes)) {
            return Ok(value);
        }
        let (mut make, mut own) = (Some(make), None);
        let made = self.cache.try_insert_missing(&bytes, || {
            let Some(make) = make.take() else { return Err(None) };
            let value = own.insert(make().map_err(Some)?);
            let mut encoded = Vec::new();
            match self.codec.encode(value, &mut encoded) {
                Ok(()) => Ok((encoded, options.clone())),
                Err(_) => Err(None),
            }
        });
        let decoded = match made {
            Ok(bytes) => self.codec.decode(&bytes).ok(),
            Err(Some(error)) => return Err(error),
            Err(None) => None,
        };
        match (own.or(decoded), make) {
            (Some(value), _) => Ok(value),
            // The stored bytes belong to another type. The caller's value replaces them.
            (None, Some(make)) => {
                let value = make()?;
                let _ = self.insert_with(key, &value, options);
                Ok(value)
            }
            (None, None) => unreachable!("a called maker has left its value or its error"),
        }
    }

    fn encode_key(&self, key: &K) -> Result<Vec<u8>, C::Error> {
        let mut bytes = Vec::with_capacity(self.prefix.len() + 32);
        bytes.extend_from_slice(&self.prefix);
        self.codec.encode_key(key, &mut bytes)?;
        Ok(bytes)
    }
}

impl<K: ?Sized, V, C: Clone> Clone for Typed<K, V, C> {
    fn clone(&self) -> Self {
        let (cache, codec, prefix) = (self.cache.clone(), self.codec.clone(), self.prefix.clone());
        Self { cache, codec, prefix, types: PhantomData }
    }
}

impl<K: ?Sized, V, C> fmt::Debug for Typed<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").field("cache", &self.cache).finish_non_exhaustive()
    }
}

/// The reason why a value was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedError<E> {
    /// The key or the value can't be encoded.
    Encode(E),
    /// The cache has refused the value.
    Insert(InsertError),
}

impl<E: fmt::Display> fmt::Display for TypedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encode(error) => write!(f, "it can't be encoded: {error}"),
            Self::Insert(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for TypedError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Encode(error) => Some(error),
            Self::Insert(error) => Some(error),
        }
    }
}
