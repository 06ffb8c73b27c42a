//! The cache, which stores keys and values as bytes.

use crate::batch::Batch;
use crate::core::Core;
use crate::insert::{InsertError, InsertOptions};
use crate::stats::{self, Stats};
use crate::workers::Read;
use bytes::Bytes;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// A cache of bytes in a fixed amount of memory. Clones share the cache, and any thread may use it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use larder_cache::{Cache, InsertOptions};
/// use std::time::Duration;
///
/// let cache = Cache::builder().memory(16 << 20).build()?;
/// cache.insert("greeting", "hello")?;
/// cache.insert_with("session", "abc", InsertOptions::new().ttl(Duration::from_secs(30)))?;
/// assert_eq!(cache.read("greeting", |value| value.len()), Some(5));
/// assert_eq!(cache.get("nothing"), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cache {
    pub(crate) core: Arc<Core>,
}

impl Cache {
    /// Returns a copy of the value under `key`, or `None` if there is no value.
    #[must_use]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Bytes> {
        Batch::new(&self.core).get(key)
    }

    /// Calls `f` with a reference to the value under `key`, and returns the result of `f`. Returns
    /// `None` if there is no value.
    ///
    /// A large value is not contiguous in memory, so the cache copies it first. `f` should be
    /// short. Until it returns, the cache can't reuse freed memory, and may therefore refuse
    /// writes. `f` may use the cache.
    #[inline]
    pub fn read<R>(&self, key: impl AsRef<[u8]>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let read = self.core.claim().read(key.as_ref(), f)?;
        Some(match read {
            Read::Shown(result) => result,
            Read::Copied(f, copy) => f(&copy),
        })
    }

    /// Returns whether there is a value under `key`. Eviction does not count the call as a use of
    /// the value, and [`Stats`] do not count the call as a lookup.
    #[must_use]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.core.claim().contains(key.as_ref())
    }

    /// Returns a copy of the value under `key`. Neither eviction nor [`Stats`] count the lookup.
    pub(crate) fn peek(&self, key: &[u8]) -> Option<Bytes> {
        self.core.claim().peek(key).map(Bytes::from)
    }

    /// Stores a copy of `value` under `key`. Replaces an existing value.
    ///
    /// # Errors
    /// [`InsertError`]: the value was not stored, and an old value under the key was removed.
    pub fn insert(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), InsertError> {
        self.insert_with(key, value, InsertOptions::new())
    }

    /// Stores a copy of `value` as [`Cache::insert`] does, with options such as an expiry.
    ///
    /// # Errors
    /// [`InsertError`]: the value was not stored, and an old value under the key was removed.
    pub fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: InsertOptions,
    ) -> Result<(), InsertError> {
        let expiry = self.core.clock.expiry(options.ttl);
        let inserted =
            self.core.claim().insert(key.as_ref(), value.as_ref(), expiry, &options.tags);
        self.core.deliver();
        inserted
    }

    /// Removes the value under `key`. Returns whether it existed.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> bool {
        let removed = self.core.claim().remove(key.as_ref());
        self.core.deliver();
        removed
    }

    /// Runs several operations in succession with less overhead for each.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// cache.insert("b", [0; 40])?;
    /// let keys = ["a", "b", "c"];
    /// let bytes: usize = cache.batch(|batch| {
    ///     batch.prefetch(&keys);
    ///     keys.iter().filter_map(|key| batch.read(key, <[u8]>::len)).sum()
    /// });
    /// assert_eq!(bytes, 40);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A batch is not a transaction: other threads can write between its operations. As in
    /// [`Cache::read`], `f` should be short, because the cache can't reuse freed memory until `f`
    /// returns.
    pub fn batch<R>(&self, f: impl FnOnce(&mut Batch<'_>) -> R) -> R {
        f(&mut Batch::new(&self.core))
    }

    /// Removes all values with this tag (see [`InsertOptions::tag`]). Returns false if no value can
    /// have the tag. Takes constant time. Maintenance frees the memory later.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// use larder_cache::InsertOptions;
    ///
    /// cache.insert_with("front page", "…", InsertOptions::new().tag("news").tag("en"))?;
    /// cache.insert_with("about", "…", InsertOptions::new().tag("en"))?;
    /// assert!(cache.drop_tag("news"));
    /// assert!(!cache.contains("front page") && cache.contains("about"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn drop_tag(&self, name: impl AsRef<[u8]>) -> bool {
        let found = self.core.claim().drop_tag(name.as_ref());
        self.core.wake();
        found
    }

    /// Removes all values. Takes constant time. Maintenance frees the memory later.
    pub fn clear(&self) {
        self.core.claim().clear();
        self.core.wake();
    }

    /// Returns the number of items, including expired and cleared items that maintenance has not
    /// removed yet. The function adds up the counts of all handles, so it is too slow to call in
    /// each request.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.core.store.gauges().items).unwrap_or(usize::MAX)
    }

    /// Returns whether [`Cache::len`] is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counts since the creation of the cache, and its current size.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.core)
    }

    /// Estimates the hit ratio, 0 to 1, of a cache with `factor` times the memory of this cache.
    /// `factor` is from 0.25 to 4. Returns `None` for other factors, and after too few lookups.
    ///
    /// The estimate is for an LRU cache, and uses a sample of at most one key in 128. The estimate
    /// therefore needs thousands of lookups, some of which must be misses.
    #[must_use]
    pub fn hit_ratio_at(&self, factor: f64) -> Option<f64> {
        stats::hit_ratio_at(&self.core.store.miss_ratio_curve(), factor)
    }
}

// The cache stays valid if a closure panics, because dropping a `Claim` ends its batch.
impl UnwindSafe for Cache {}
impl RefUnwindSafe for Cache {}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish()
    }
}
