//! Iterators over keys and values.

use super::codec::{Codec, DecodeKey};
use super::view::Typed;

impl<K: ?Sized, V, C: DecodeKey<K>> Typed<K, V, C> {
    /// Returns an iterator over the keys with this view's prefix. It has the properties of
    /// [`crate::Cache::keys`], and visits all keys of the cache.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use larder_cache::{Cache, Typed};
    ///
    /// let cache = Cache::builder().build()?;
    /// let users: Typed<u64, String> = Typed::new(cache.clone()).prefix("user:");
    /// users.insert(&7, &"Ada".into())?;
    /// cache.insert("page", "<html>")?;
    /// assert_eq!(users.keys().collect::<Vec<_>>(), [7]);
    /// assert_eq!(users.iter().collect::<Vec<_>>(), [(7, "Ada".into())]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The iterator omits keys that the codec can't decode. If another type uses keys with this
    /// prefix, the iterator may return these keys as wrong keys of this type.
    pub fn keys(&self) -> impl Iterator<Item = C::Owned> + use<'_, K, V, C> {
        self.cache.keys().filter_map(|key| self.decode_key(&key))
    }

    /// Returns an iterator over the keys with this view's prefix and their values, with the
    /// properties of [`crate::Cache::iter`]. It omits values that the codec can't decode.
    pub fn iter(&self) -> impl Iterator<Item = (C::Owned, V)> + use<'_, K, V, C>
    where
        C: Codec<K, V>,
    {
        self.cache.keys().filter_map(|key| {
            let decoded = self.decode_key(&key)?;
            let value = self.cache.peek(&key)?;
            Some((decoded, self.codec.decode(&value).ok()?))
        })
    }

    fn decode_key(&self, bytes: &[u8]) -> Option<C::Owned> {
        self.codec.decode_key(bytes.strip_prefix(&*self.prefix)?)
    }
}
