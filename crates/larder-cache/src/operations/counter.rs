//! Counters: values that are decimal numbers.

use crate::cache::Cache;
use crate::insert::{InsertError, InsertOptions};
use crate::workers::Claim;
use larder_operations::{AddOutcome, CreateSum};
use larder_store::Expiry;
use std::fmt;

impl Cache {
    /// Atomically adds `delta` to the number under `key`, and returns the sum. A missing number
    /// counts as 0. The value keeps its expiry and its tags; a new value has neither.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// use larder_cache::{CounterError, InsertOptions};
    /// use std::time::Duration;
    ///
    /// assert_eq!(cache.increment("visits", 1), Ok(1));
    /// assert_eq!(cache.decrement("visits", 3), Ok(-2));
    /// assert_eq!(cache.get("visits").as_deref(), Some(&b"-2"[..]));
    ///
    /// // Ten requests a minute: the first request sets the expiry.
    /// let minute = InsertOptions::new().ttl(Duration::from_secs(60));
    /// let left = cache.increment_with("quota:ada", -1, 10, minute)?;
    /// assert_eq!(left, 9);
    ///
    /// cache.insert("name", "Ada")?;
    /// assert_eq!(cache.increment("name", 1), Err(CounterError::NotANumber));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The value is the number in decimal digits, with a leading `-` if the number is negative.
    /// [`Cache::get`] and [`Cache::insert`] read and set it. [`crate::Stats`] count neither a
    /// lookup nor an insertion. [`crate::Builder::item_size_max`] does not limit counters.
    ///
    /// # Errors
    /// [`CounterError`]: nothing changed.
    pub fn increment(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<i64, CounterError> {
        self.increment_with(key, delta, 0, InsertOptions::new())
    }

    /// Adds `delta` to the number under `key`, as [`Cache::increment`] does. If there is no value,
    /// adds `delta` to `initial`, and stores the sum with `options`. An existing value keeps its
    /// expiry and its tags.
    ///
    /// # Errors
    /// [`CounterError`]: nothing changed.
    pub fn increment_with(
        &self,
        key: impl AsRef<[u8]>,
        delta: i64,
        initial: i64,
        options: InsertOptions,
    ) -> Result<i64, CounterError> {
        let expiry = self.core.clock.expiry(options.ttl);
        let mut claim = self.core.claim();
        let sum = claim.add(key.as_ref(), delta, initial, expiry, &options.tags);
        drop(claim);
        self.core.deliver();
        sum
    }

    /// Subtracts `delta` from the number under `key`, as [`Cache::increment`] does with `-delta`.
    ///
    /// # Errors
    /// [`CounterError`]: nothing changed. For a `delta` of [`i64::MIN`], the error is always
    /// [`CounterError::Overflow`].
    pub fn decrement(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<i64, CounterError> {
        self.increment(key, delta.checked_neg().ok_or(CounterError::Overflow)?)
    }
}

impl Claim<'_> {
    fn add(
        &mut self,
        key: &[u8],
        delta: i64,
        initial: i64,
        expiry: Expiry,
        tags: &[Box<[u8]>],
    ) -> Result<i64, CounterError> {
        let tags = self.resolve(key, tags).map_err(CounterError::Insert)?;
        let key = self.hashed(key);
        let create = CreateSum { initial, expiry, binary_key: false, tags: &tags };
        match self.context().add(key, delta, &create) {
            AddOutcome::Number(sum) => Ok(sum),
            AddOutcome::NonNumeric => Err(CounterError::NotANumber),
            AddOutcome::Overflow => Err(CounterError::Overflow),
            AddOutcome::OutOfMemory | AddOutcome::Pending => {
                self.context().counters.thread.store_no_memory.add(1);
                Err(CounterError::Insert(InsertError::OutOfMemory))
            }
        }
    }
}

/// The reason why a counter did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterError {
    /// The value is not a decimal number from [`i64::MIN`] to [`i64::MAX`], or has leading zeros or
    /// a `+`. Trailing spaces are ignored.
    NotANumber,
    /// The sum is not in the range of `i64`.
    Overflow,
    /// The sum was not stored.
    Insert(InsertError),
}

impl fmt::Display for CounterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber => f.write_str("the value is not a decimal number of 64 bits"),
            Self::Overflow => f.write_str("the sum does not fit in 64 bits"),
            Self::Insert(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CounterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Insert(error) = self { Some(error) } else { None }
    }
}
