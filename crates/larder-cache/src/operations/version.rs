//! Compare-and-swap.

use crate::cache::Cache;
use crate::insert::{InsertError, InsertOptions};
use crate::workers::{Claim, copy_of_value};
use bytes::Bytes;
use larder_operations::{Store, StoreOutcome};
use larder_store::{Expiry, Lookup};
use std::fmt;

/// The version of a stored value. Each store gives a value a new version, which differs from all
/// earlier versions in the same cache, even if the value is removed and stored again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

/// The outcome of [`Cache::compare_and_swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum SwapOutcome {
    /// The value was stored, and has this version.
    Stored(Version),
    /// The value has another version. Nothing changed.
    Changed,
    /// There is no value: it was removed, evicted, or has expired. Nothing changed.
    Missing,
}

impl Cache {
    /// Returns a copy of the value under `key` and its version, or `None` if there is no value.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use larder_cache::{Cache, SwapOutcome};
    ///
    /// let cache = Cache::builder().versions(true).build()?;
    /// cache.insert("key", "old")?;
    /// let (value, version) = cache.get_versioned("key").unwrap();
    /// assert_eq!(value, "old");
    ///
    /// cache.insert("key", "of another thread")?;
    /// assert_eq!(cache.compare_and_swap("key", version, "new")?, SwapOutcome::Changed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the cache stores no versions ([`crate::Builder::versions`]), all values have the same
    /// version, and [`Cache::compare_and_swap`] returns an error.
    #[must_use]
    pub fn get_versioned(&self, key: impl AsRef<[u8]>) -> Option<(Bytes, Version)> {
        self.core.claim().read_versioned(key.as_ref())
    }

    /// Stores a copy of `value` under `key` if the current value still has this version. The stored
    /// value has neither an expiry nor tags.
    ///
    /// # Errors
    /// [`SwapError`]: nothing changed.
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        version: Version,
        value: impl AsRef<[u8]>,
    ) -> Result<SwapOutcome, SwapError> {
        self.compare_and_swap_with(key, version, value, InsertOptions::new())
    }

    /// Stores a copy of `value` as [`Cache::compare_and_swap`] does, with options such as an
    /// expiry.
    ///
    /// # Errors
    /// [`SwapError`]: nothing changed.
    pub fn compare_and_swap_with(
        &self,
        key: impl AsRef<[u8]>,
        version: Version,
        value: impl AsRef<[u8]>,
        options: InsertOptions,
    ) -> Result<SwapOutcome, SwapError> {
        if !self.core.has_versions {
            return Err(SwapError::NoVersions);
        }
        let (key, value) = (key.as_ref(), value.as_ref());
        let expiry = self.core.clock.expiry(options.ttl);
        let swapped = self.core.claim().swap(key, version, value, expiry, &options.tags);
        self.core.deliver();
        swapped.map_err(SwapError::Store)
    }
}

impl Claim<'_> {
    fn read_versioned(&mut self, key: &[u8]) -> Option<(Bytes, Version)> {
        let key = self.hashed(key);
        let lookup = self.context().content(key, |content| {
            Some((copy_of_value(&content.value).into(), Version(content.cas)))
        });
        if let Lookup::Hit(result) = lookup { result } else { None }
    }

    fn swap(
        &mut self,
        key: &[u8],
        version: Version,
        value: &[u8],
        expiry: Expiry,
        tags: &[Box<[u8]>],
    ) -> Result<SwapOutcome, InsertError> {
        let tags = self.resolve(key, tags)?;
        let key = self.hashed(key);
        let (value_len, compare) = (value.len(), Some(version.0));
        let op = Store { value, value_len, compare, expiry, tags: &tags, ..Store::default() };
        match self.store_uploaded(key, &op, value) {
            StoreOutcome::Stored { cas, .. } => Ok(SwapOutcome::Stored(Version(cas))),
            StoreOutcome::Exists => Ok(SwapOutcome::Changed),
            StoreOutcome::NotFound => Ok(SwapOutcome::Missing),
            StoreOutcome::TooLarge => Err(InsertError::TooLarge),
            _ => Err(InsertError::OutOfMemory),
        }
    }
}

/// The reason why a compare-and-swap failed. `E` is the error of a store: [`InsertError`] for
/// [`Cache`], and [`crate::TypedError`] for [`crate::Typed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapError<E = InsertError> {
    /// The cache stores no versions: see [`crate::Builder::versions`].
    NoVersions,
    /// The value was not stored.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for SwapError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVersions => f.write_str("the cache keeps no versions: see Builder::versions"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for SwapError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Store(error) = self { Some(error) } else { None }
    }
}
