//! Makes missing values.

use super::codec::Codec;
use super::view::Typed;
use crate::insert::InsertOptions;
use bytes::Bytes;
use std::convert::Infallible;
use std::pin::pin;

impl<K: ?Sized, V, C: Codec<K, V>> Typed<K, V, C> {
    /// Returns the value under `key`. If there is none, calls `make`, and stores and returns the
    /// value that it makes. See [`crate::Cache::get_or_insert_with`] about makers.
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
            Ok((self.encode_value(value).map_err(|_| None)?, options.clone()))
        });
        if let Some(value) = self.made(made, own)? {
            return Ok(value);
        }
        let Some(make) = make else {
            unreachable!("a called maker has left its value or its error")
        };
        let value = make()?;
        let _ = self.insert_with(key, &value, options);
        Ok(value)
    }

    /// Returns the value under `key`. If there is none, awaits `make`, and stores and returns the
    /// value that it makes. See [`crate::Cache::get_or_insert_async`] about makers.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use larder_cache::{Cache, Typed};
    ///
    /// let squares: Typed<u64, u64> = Typed::new(Cache::builder().build()?);
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// assert_eq!(squares.get_or_insert_async(&9, async { 81 }).await, 81);
    /// # });
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_or_insert_async(&self, key: &K, make: impl Future<Output = V>) -> V {
        let make = async { Ok::<_, Infallible>(make.await) };
        let made = self.try_get_or_insert_async(key, InsertOptions::new(), make).await;
        made.unwrap_or_else(|error| match error {})
    }

    /// Does the same as [`Typed::get_or_insert_async`], for makers that may fail, and with options
    /// such as an expiry. If the codec can't encode the key or the value, the call returns the
    /// value without storing it.
    ///
    /// # Errors
    /// The error of this call's own `make`.
    pub async fn try_get_or_insert_async<E>(
        &self,
        key: &K,
        options: InsertOptions,
        make: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let Ok(bytes) = self.encode_key(key) else { return make.await };
        if let Some(Ok(value)) = self.cache.read(&bytes, |bytes| self.codec.decode(bytes)) {
            return Ok(value);
        }
        let (mut make, mut own) = (pin!(make), None);
        let made = self.cache.try_insert_missing_async(&bytes, async {
            let value = own.insert(make.as_mut().await.map_err(Some)?);
            Ok((self.encode_value(value).map_err(|_| None)?, options.clone()))
        });
        let made = made.await;
        if let Some(value) = self.made(made, own)? {
            return Ok(value);
        }
        // The cache found a value of another type and did not poll the maker, so make the value
        // here.
        let value = make.await?;
        let _ = self.insert_with(key, &value, options);
        Ok(value)
    }

    /// Returns the value of this call's own maker (`own`), or the value that another maker has
    /// stored. Returns `None` if the stored bytes belong to another type. The caller then replaces
    /// them with its own value.
    fn made<E>(&self, made: Result<Bytes, Option<E>>, own: Option<V>) -> Result<Option<V>, E> {
        match made {
            Err(Some(error)) => Err(error),
            Ok(bytes) => Ok(own.or_else(|| self.codec.decode(&bytes).ok())),
            // If the value can't be encoded, the cache does not contain it, but the caller still
            // gets it.
            Err(None) => Ok(own),
        }
    }
}
