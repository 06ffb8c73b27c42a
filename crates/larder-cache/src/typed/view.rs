//! A cache of values that are encoded as bytes: lookups, stores and removals.

use super::codec::{Codec, Postcard};
use super::error::TypedError;
use crate::cache::Cache;
use crate::insert::InsertOptions;
use std::fmt;
use std::marker::PhantomData;

/// A [`Cache`] for values of one type. It encodes values when they are stored, and decodes them
/// when they are read.
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
    pub(super) cache: Cache,
    pub(super) codec: C,
    pub(super) prefix: Box<[u8]>,
    types: PhantomData<fn(&K) -> V>,
}

impl<K: ?Sized, V> Typed<K, V> {
    /// Creates a typed view of `cache` that encodes values with [`Postcard`].
    #[must_use]
    pub fn new(cache: Cache) -> Self {
        Self::with_codec(cache, Postcard)
    }
}

impl<K: ?Sized, V, C> Typed<K, V, C> {
    /// Creates a typed view of `cache` that encodes values with `codec`.
    #[must_use]
    pub fn with_codec(cache: Cache, codec: C) -> Self {
        Self { cache, codec, prefix: Box::default(), types: PhantomData }
    }

    /// Prepends `prefix` to all keys, to separate them from other keys in the same cache.
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

    /// Returns whether there is a value of any type under `key`. See [`Cache::contains`].
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

    /// Stores `value` as [`Typed::insert`] does, with options such as an expiry.
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
        match self.encode_value(value) {
            Ok(bytes) => self.cache.insert_with(key, bytes, options).map_err(TypedError::Insert),
            Err(error) => {
                self.cache.remove(key);
                Err(error)
            }
        }
    }

    /// Removes the value under `key`. Returns whether it existed.
    pub fn remove(&self, key: &K) -> bool {
        self.encode_key(key).is_ok_and(|key| self.cache.remove(key))
    }

    pub(super) fn encode_value(&self, value: &V) -> Result<Vec<u8>, TypedError<C::Error>> {
        let mut bytes = Vec::new();
        self.codec.encode(value, &mut bytes).map_err(TypedError::Encode)?;
        Ok(bytes)
    }

    pub(super) fn encode_key(&self, key: &K) -> Result<Vec<u8>, C::Error> {
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
