//! Reads and changes the expiry of values.

use crate::cache::Cache;
use crate::insert::InsertError;
use crate::workers::Claim;
use larder_operations::{Expire, ExpireOutcome};
use larder_store::{Expiry, Lookup};
use std::time::Duration;

/// The time until a value expires: see [`Cache::ttl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// The value does not expire.
    Unlimited,
    /// The value expires after this time.
    Left(Duration),
}

impl Cache {
    /// Returns the time until the value under `key` expires, or `None` if there is no value.
    /// Eviction does not count the call as a use of the value, and [`crate::Stats`] do not count
    /// the call as a lookup.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// use larder_cache::{InsertOptions, Ttl};
    /// use std::time::Duration;
    ///
    /// let minute = Duration::from_secs(60);
    /// cache.insert_with("session", "abc", InsertOptions::new().ttl(minute))?;
    /// assert!(matches!(cache.ttl("session"), Some(Ttl::Left(left)) if left <= minute));
    ///
    /// assert!(cache.touch("session", None)?);
    /// assert_eq!(cache.ttl("session"), Some(Ttl::Unlimited));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Values expire at whole seconds of the cache's clock, so the time can be up to a second less
    /// than the TTL even directly after an insert: see [`crate::InsertOptions::ttl`].
    #[must_use]
    pub fn ttl(&self, key: impl AsRef<[u8]>) -> Option<Ttl> {
        let expiry = self.core.claim().expiry(key.as_ref())?;
        let left = |at| Ttl::Left(self.core.clock.until(at));
        Some(expiry.second().map_or(Ttl::Unlimited, left))
    }

    /// Makes the value under `key` expire after `ttl`, or never if `ttl` is `None`. Returns whether
    /// there is a value. Eviction counts this as a use of the value. The version does not change.
    ///
    /// # Errors
    /// [`InsertError::OutOfMemory`]: the value keeps its expiry.
    pub fn touch(&self, key: impl AsRef<[u8]>, ttl: Option<Duration>) -> Result<bool, InsertError> {
        let expiry = self.core.clock.expiry(ttl);
        let touched = self.core.claim().expire(key.as_ref(), expiry);
        self.core.deliver();
        touched
    }
}

impl Claim<'_> {
    fn expiry(&mut self, key: &[u8]) -> Option<Expiry> {
        let key = self.hashed(key);
        let lookup = self.context().describe(key, |item| item.attributes.expiry);
        if let Lookup::Hit(expiry) = lookup { Some(expiry) } else { None }
    }

    fn expire(&mut self, key: &[u8], expiry: Expiry) -> Result<bool, InsertError> {
        let key = self.hashed(key);
        match self.context().expire(key, &Expire { expiry, ..Expire::default() }) {
            ExpireOutcome::Changed => Ok(true),
            ExpireOutcome::NotFound => Ok(false),
            _ => Err(InsertError::OutOfMemory),
        }
    }
}
