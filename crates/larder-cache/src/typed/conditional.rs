//! Changes that depend on the stored value, and expiries.

use super::codec::Codec;
use super::error::TypedError;
use super::view::Typed;
use crate::insert::{InsertError, InsertOptions};
use crate::operations::{SwapError, SwapOutcome, Ttl, Update, Version};
use std::time::Duration;

impl<K: ?Sized, V, C: Codec<K, V>> Typed<K, V, C> {
    /// Atomically changes the value under `key`: passes the value, or `None`, to `f`, and applies
    /// the change that `f` returns. Returns the value after the change. See
    /// [`crate::Cache::update`]. A value that the codec can't decode is passed as `None`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use larder_cache::{Cache, Typed, Update};
    ///
    /// let visits: Typed<str, u64> = Typed::new(Cache::builder().build()?);
    /// let count = |old: Option<u64>| Update::Replace(old.unwrap_or(0) + 1);
    /// assert_eq!(visits.update("home", count)?, Some(1));
    /// assert_eq!(visits.update("home", count)?, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TypedError`]: nothing changed.
    pub fn update(
        &self,
        key: &K,
        mut f: impl FnMut(Option<V>) -> Update<V>,
    ) -> Result<Option<V>, TypedError<C::Error>> {
        let key = self.encode_key(key).map_err(TypedError::Encode)?;
        let updated = self.cache.try_update(&key, |old| {
            let old = old.and_then(|bytes| self.codec.decode(bytes).ok());
            Ok::<_, TypedError<C::Error>>(match f(old) {
                Update::Keep => Update::Keep,
                Update::Remove => Update::Remove,
                Update::Replace(value) => Update::Replace(self.encode_value(&value)?),
                Update::Insert(value, options) => {
                    Update::Insert(self.encode_value(&value)?, options)
                }
            })
        })?;
        Ok(updated.and_then(|bytes| self.codec.decode(&bytes).ok()))
    }

    /// Returns the value under `key` and its version, or `None` if there is no value. See
    /// [`crate::Cache::get_versioned`].
    #[must_use]
    pub fn get_versioned(&self, key: &K) -> Option<(V, Version)> {
        let (value, version) = self.cache.get_versioned(self.encode_key(key).ok()?)?;
        Some((self.codec.decode(&value).ok()?, version))
    }

    /// Stores `value` under `key` if the current value still has this version. The stored value has
    /// neither an expiry nor tags.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use larder_cache::{Cache, SwapOutcome, Typed};
    ///
    /// let stock: Typed<str, u32> = Typed::new(Cache::builder().versions(true).build()?);
    /// stock.insert("apples", &5)?;
    /// let (left, version) = stock.get_versioned("apples").unwrap();
    /// let SwapOutcome::Stored(next) = stock.compare_and_swap("apples", version, &(left - 1))? else {
    ///     panic!("no other thread has changed the value");
    /// };
    /// assert_eq!(stock.get_versioned("apples"), Some((4, next)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SwapError`]: nothing changed.
    pub fn compare_and_swap(
        &self,
        key: &K,
        version: Version,
        value: &V,
    ) -> Result<SwapOutcome, SwapError<TypedError<C::Error>>> {
        self.compare_and_swap_with(key, version, value, InsertOptions::new())
    }

    /// Stores `value` as [`Typed::compare_and_swap`] does, with options such as an expiry.
    ///
    /// # Errors
    /// [`SwapError`]: nothing changed.
    pub fn compare_and_swap_with(
        &self,
        key: &K,
        version: Version,
        value: &V,
        options: InsertOptions,
    ) -> Result<SwapOutcome, SwapError<TypedError<C::Error>>> {
        let refused = |error| SwapError::Store(TypedError::Encode(error));
        let key = self.encode_key(key).map_err(refused)?;
        let value = self.encode_value(value).map_err(SwapError::Store)?;
        let swapped = self.cache.compare_and_swap_with(key, version, value, options);
        swapped.map_err(|error| match error {
            SwapError::NoVersions => SwapError::NoVersions,
            SwapError::Store(error) => SwapError::Store(TypedError::Insert(error)),
        })
    }

    /// Returns the time until the value under `key` expires, or `None` if there is no value of any
    /// type. See [`crate::Cache::ttl`].
    #[must_use]
    pub fn ttl(&self, key: &K) -> Option<Ttl> {
        self.cache.ttl(self.encode_key(key).ok()?)
    }

    /// Makes the value under `key` expire after `ttl`, or never if `ttl` is `None`. Returns whether
    /// there is a value of any type. See [`crate::Cache::touch`].
    ///
    /// # Errors
    /// [`InsertError::OutOfMemory`]: the value keeps its expiry.
    pub fn touch(&self, key: &K, ttl: Option<Duration>) -> Result<bool, InsertError> {
        let Ok(key) = self.encode_key(key) else { return Ok(false) };
        self.cache.touch(key, ttl)
    }
}
