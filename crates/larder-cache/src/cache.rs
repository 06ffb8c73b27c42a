//! The cache of bytes.

use crate::batch::Batch;
use crate::core::Core;
use crate::makers::{self, Turn};
use crate::put::{InsertError, Made, Put};
use crate::stats::{self, Stats};
use crate::workers::Read;
use bytes::Bytes;
use std::convert::Infallible;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// A cache of bytes in a fixed amount of memory. Clones are the same cache, and any thread may use it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use larder_cache::{Cache, Put};
/// use std::time::Duration;
///
/// let cache = Cache::builder().memory(16 << 20).build()?;
/// cache.insert("greeting", "hello")?;
/// cache.insert_with("session", "abc", Put::new().ttl(Duration::from_secs(30)))?;
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
    /// A copy of the value under `key`.
    #[must_use]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Bytes> {
        Batch::new(&self.core).get(key)
    }

    /// The result of `f`, to which the value under `key` is shown where it lies.
    ///
    /// Only a value that takes several segments, which are up to 1 MiB long, is copied before, because it is not
    /// in one piece. `f` should be short: memory that is freed while it runs can't be used again until it
    /// returns, and writes may be refused for it. It may use the cache.
    #[inline]
    pub fn read<R>(&self, key: impl AsRef<[u8]>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let read = self.core.claim().read(key.as_ref(), f)?;
        Some(match read {
            Read::Shown(result) => result,
            Read::Copied(f, copy) => f(&copy),
        })
    }

    /// Whether there is a value under `key`. This counts neither as a use of it nor in [`Stats`].
    #[must_use]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.core.claim().contains(key.as_ref())
    }

    /// Stores a copy of `value` under `key`, in place of the value that is there.
    ///
    /// # Errors
    /// [`InsertError`]: no value is under the key.
    pub fn insert(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), InsertError> {
        self.insert_with(key, value, Put::new())
    }

    /// [`Cache::insert`] of an item that may expire.
    ///
    /// # Errors
    /// [`InsertError`]: no value is under the key.
    pub fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        put: Put,
    ) -> Result<(), InsertError> {
        let expiry = self.core.clock.expiry(put.ttl);
        let inserted = self.core.claim().insert(key.as_ref(), value.as_ref(), expiry, &put.tags);
        self.core.deliver();
        inserted
    }

    /// Removes the value under `key`; whether there was one.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> bool {
        self.core.claim().remove(key.as_ref())
    }

    /// The value under `key`, or else the one that `make` makes, which is stored.
    ///
    /// ```
    /// # fn main() -> Result<(), larder_cache::BuildError> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// use larder_cache::Put;
    /// use std::time::Duration;
    ///
    /// let page = cache.get_or_insert_with("page", || "made once");
    /// assert_eq!(page, "made once");
    ///
    /// // A maker may say how its value is stored.
    /// let minute = Put::new().ttl(Duration::from_secs(60));
    /// cache.get_or_insert_with("quote", || (vec![4, 2], minute));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Of all threads that ask for a key, one makes the value at a time, and the others wait for it. If it panics,
    /// the next one makes the value. A maker may use this cache and others: where waiting could never end,
    /// because the value that is being made needs this very call, this one makes a value of its own. A
    /// value that can't be stored, for example because it is too large, is returned nonetheless.
    pub fn get_or_insert_with<M: Into<Made>>(
        &self,
        key: impl AsRef<[u8]>,
        make: impl FnOnce() -> M,
    ) -> Bytes {
        let made = self.try_get_or_insert_with(key, || Ok::<_, Infallible>(make()));
        made.unwrap_or_else(|error| match error {})
    }

    /// [`Cache::get_or_insert_with`] for makers that may fail.
    ///
    /// # Errors
    /// That of this call's own `make`. Those who wait for it are not told: the next one makes the value.
    pub fn try_get_or_insert_with<M: Into<Made>, E>(
        &self,
        key: impl AsRef<[u8]>,
        make: impl FnOnce() -> Result<M, E>,
    ) -> Result<Bytes, E> {
        let key = key.as_ref();
        match self.get(key) {
            Some(value) => Ok(value),
            None => self.try_insert_missing(key, make),
        }
    }

    /// The same for a key that was not found.
    pub(crate) fn try_insert_missing<M: Into<Made>, E>(
        &self,
        key: &[u8],
        make: impl FnOnce() -> Result<M, E>,
    ) -> Result<Bytes, E> {
        let making = loop {
            match makers::join(self.core.id, key) {
                Turn::Make(making) => break making,
                Turn::Made(value) => return Ok(value),
                Turn::Failed => (),
            }
        };
        // Another maker may have ended since the look-up.
        let found = self.core.claim().peek(key);
        let value = match found {
            Some(value) => value.into(),
            None => {
                let Made { value, put } = make()?.into();
                // The caller has the value, stored or not.
                let _ = self.insert_with(key, &value, put);
                value
            }
        };
        making.finish(&value);
        Ok(value)
    }

    /// Runs several operations in succession with less work for each.
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
    /// A batch is not a transaction: other threads' writes come in between. It should be short, as the closure of
    /// [`Cache::read`], and for the same reason.
    pub fn batch<R>(&self, f: impl FnOnce(&mut Batch<'_>) -> R) -> R {
        f(&mut Batch::new(&self.core))
    }

    /// Removes all values with this tag (see [`Put::tag`]); false if there can be none. This takes the same time for
    /// any number; their memory is freed by and by.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// use larder_cache::Put;
    ///
    /// cache.insert_with("front page", "…", Put::new().tag("news").tag("en"))?;
    /// cache.insert_with("about", "…", Put::new().tag("en"))?;
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

    /// Removes all values. This takes the same time for any number; their memory is freed by and by.
    pub fn clear(&self) {
        self.core.claim().clear();
        self.core.wake();
    }

    /// The number of items, with those that have expired or were cleared and that maintenance has not removed
    /// yet. It is summed up over all threads' counts, so it is no call for each request.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.core.store.gauges().items).unwrap_or(usize::MAX)
    }

    /// Whether [`Cache::len`] is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts since the cache was built, and its present size.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.core)
    }

    /// An estimate of the hit ratio, 0 to 1, with `factor` times the memory, from 0.25 to 4; otherwise `None`, and
    /// before enough keys were looked up.
    ///
    /// It is that of an LRU cache, from a sample of at most one look-up in 128, so it takes thousands of
    /// look-ups. Look-ups count that have found nothing, too.
    #[must_use]
    pub fn hit_ratio_at(&self, factor: f64) -> Option<f64> {
        stats::hit_ratio_at(&self.core.store.miss_ratio_curve(), factor)
    }
}

// A closure that panics leaves the cache as it was: see `workers`, whose claims end when they are dropped.
impl UnwindSafe for Cache {}
impl RefUnwindSafe for Cache {}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish()
    }
}
