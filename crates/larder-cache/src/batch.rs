//! Several operations with one handle.

use crate::core::Core;
use crate::insert::{InsertError, InsertOptions};
use crate::workers::{Claim, Read};
use bytes::Bytes;

/// Several operations in succession: see [`crate::Cache::batch`].
pub struct Batch<'c> {
    core: &'c Core,
    claim: Claim<'c>,
}

impl<'c> Batch<'c> {
    pub(crate) fn new(core: &'c Core) -> Self {
        Self { core, claim: core.claim() }
    }

    /// Prefetches the items of `keys` into the processor's caches. The prefetch saves time if the
    /// processor's caches do not contain the items yet, and the program then reads the keys in this
    /// order. Batches of about 32 keys are best.
    pub fn prefetch<K: AsRef<[u8]>>(&mut self, keys: &[K]) {
        self.claim.prefetch(keys);
    }

    /// Does the same as [`crate::Cache::get`].
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> Option<Bytes> {
        Some(match self.claim.read(key.as_ref(), Bytes::copy_from_slice)? {
            Read::Shown(value) => value,
            Read::Copied(_, copy) => copy.into(),
        })
    }

    /// Does the same as [`crate::Cache::read`].
    #[inline]
    pub fn read<R>(&mut self, key: impl AsRef<[u8]>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        Some(match self.claim.read(key.as_ref(), f)? {
            Read::Shown(result) => result,
            Read::Copied(f, copy) => f(&copy),
        })
    }

    /// Does the same as [`crate::Cache::contains`].
    pub fn contains(&mut self, key: impl AsRef<[u8]>) -> bool {
        self.claim.contains(key.as_ref())
    }

    /// Does the same as [`crate::Cache::insert`].
    ///
    /// # Errors
    /// [`InsertError`]: the value was not stored, and an old value under the key was removed.
    pub fn insert(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), InsertError> {
        self.insert_with(key, value, InsertOptions::new())
    }

    /// Does the same as [`crate::Cache::insert_with`].
    ///
    /// # Errors
    /// [`InsertError`]: the value was not stored, and an old value under the key was removed.
    pub fn insert_with(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: InsertOptions,
    ) -> Result<(), InsertError> {
        let expiry = self.core.clock.expiry(options.ttl);
        let inserted = self.claim.insert(key.as_ref(), value.as_ref(), expiry, &options.tags);
        self.core.deliver();
        inserted
    }

    /// Does the same as [`crate::Cache::remove`].
    pub fn remove(&mut self, key: impl AsRef<[u8]>) -> bool {
        let removed = self.claim.remove(key.as_ref());
        self.core.deliver();
        removed
    }
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}
