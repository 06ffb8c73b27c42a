//! Updates that depend on the old value.

use crate::cache::Cache;
use crate::insert::{InsertError, InsertOptions};
use crate::workers::Claim;
use bytes::Bytes;
use larder_operations::has_value;
use larder_store::{
    Attributes, Change, Expiry, HashedKey, Lookup, NewCas, NewTags, NewValue, Refusal, Tag, Updates,
};

/// The decision that the closure of [`Cache::update`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update<V> {
    /// Changes nothing.
    Keep,
    /// Removes the value.
    Remove,
    /// Stores a value with the expiry and the tags of the old value. If there is no old value, the
    /// new value has neither.
    Replace(V),
    /// Stores a value with options, as [`Cache::insert_with`] does. The expiry and the tags of the
    /// old value are discarded.
    Insert(V, InsertOptions),
}

impl Cache {
    /// Atomically changes the value under `key`: passes the value, or `None`, to `f`, and applies
    /// the change that `f` returns. Returns the value after the change.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// use larder_cache::Update;
    ///
    /// let append = |old: Option<&[u8]>| Update::Replace([old.unwrap_or_default(), b"x"].concat());
    /// assert_eq!(cache.update("log", append)?.unwrap(), "x");
    /// assert_eq!(cache.update("log", append)?.unwrap(), "xx");
    ///
    /// let remove_long = |old: Option<&[u8]>| match old {
    ///     Some(old) if old.len() > 1 => Update::Remove,
    ///     _ => Update::<Vec<u8>>::Keep,
    /// };
    /// assert_eq!(cache.update("log", remove_long)?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `f` receives a copy of the value, and runs without a lock. If the bytes of the value have
    /// changed by the time the cache applies the change, the cache calls `f` again with the new
    /// value, so `f` should have no side effects. `f` may use the cache. [`crate::Stats`] count an
    /// insertion if a value is stored, but no lookup.
    ///
    /// # Errors
    /// [`InsertError`]: nothing changed.
    pub fn update<V: Into<Bytes>>(
        &self,
        key: impl AsRef<[u8]>,
        mut f: impl FnMut(Option<&[u8]>) -> Update<V>,
    ) -> Result<Option<Bytes>, InsertError> {
        self.try_update(key.as_ref(), |old| Ok(f(old)))
    }

    /// Does the same as [`Cache::update`], for closures that may fail.
    pub(crate) fn try_update<V: Into<Bytes>, E: From<InsertError>>(
        &self,
        key: &[u8],
        mut f: impl FnMut(Option<&[u8]>) -> Result<Update<V>, E>,
    ) -> Result<Option<Bytes>, E> {
        loop {
            let old = self.peek(key);
            let (value, options) = match f(old.as_deref())? {
                Update::Keep => return Ok(old),
                Update::Remove if old.is_none() => return Ok(None),
                Update::Remove => (None, None),
                Update::Replace(value) => (Some(value.into()), None),
                Update::Insert(value, options) => (Some(value.into()), Some(options)),
            };
            let expiry = options.as_ref().map(|options| self.core.clock.expiry(options.ttl));
            let tags = options.as_ref().map(|options| &*options.tags);
            let new = Exchange { value: value.as_deref(), expiry, tags };
            let exchanged = self.core.claim().exchange(key, old.as_deref(), &new);
            self.core.deliver();
            if exchanged? {
                return Ok(value);
            }
        }
    }
}

/// The new content of an item in `Claim::exchange`.
struct Exchange<'v> {
    /// The new value; `None` removes the item.
    value: Option<&'v [u8]>,
    /// The new expiry; `None` keeps the old expiry.
    expiry: Option<Expiry>,
    /// The names of the new tags; `None` keeps the old tags.
    tags: Option<&'v [Box<[u8]>]>,
}

impl<'v> Exchange<'v> {
    /// Returns the change for an item whose current expiry is `old`.
    fn change<'t>(&self, old: Expiry, tags: &'t [Tag], is_uploaded: bool) -> Change<'t>
    where
        'v: 't,
    {
        let Some(value) = self.value else { return Change::Remove };
        let attributes = Attributes { expiry: self.expiry.unwrap_or(old), ..Attributes::default() };
        let value = if is_uploaded { NewValue::Uploaded } else { NewValue::Bytes(value) };
        let tags = match self.tags {
            None => NewTags::Same,
            Some([]) => NewTags::None,
            Some(_) => NewTags::These(tags),
        };
        Change::Put { attributes, cas: NewCas::Fresh, value, fetched: false, tags }
    }
}

impl Claim<'_> {
    /// Exchanges the item under `key` if its value is still `old`. Returns whether the value was
    /// still `old`.
    fn exchange(
        &mut self,
        key: &[u8],
        old: Option<&[u8]>,
        new: &Exchange<'_>,
    ) -> Result<bool, InsertError> {
        let tags = self.resolve(key, new.tags.unwrap_or_default())?;
        let key = self.hashed(key);
        let exchanged = self.try_exchange(key, old, new, &tags);
        let context = self.context();
        let thread = &context.counters.thread;
        match exchanged {
            Ok(is_same) => {
                if is_same && new.value.is_some() {
                    // Count in class 0, because all items belong to one class of the statistics.
                    context.counters.class(Some(0), |class| class.cmd_set.add(1));
                }
                Ok(is_same)
            }
            Err(Refusal::TooLarge) => {
                thread.store_too_large.add(1);
                Err(InsertError::TooLarge)
            }
            Err(_) => {
                thread.store_no_memory.add(1);
                Err(InsertError::OutOfMemory)
            }
        }
    }

    fn try_exchange(
        &mut self,
        key: HashedKey<'_>,
        old: Option<&[u8]>,
        new: &Exchange<'_>,
        tags: &[Tag],
    ) -> Result<bool, Refusal> {
        let value = new.value.unwrap_or_default();
        let limits = self.context().limits;
        let footprint = limits.footprint(key.bytes.len(), value.len(), 0);
        if new.value.is_some() && footprint > limits.item_size_max {
            return Err(Refusal::TooLarge);
        }
        let mut upload = self.upload(value)?;
        let is_uploaded = upload.is_some();
        let updated = self.context().engine.update(key, &mut upload, |item| {
            let (is_same, expiry) = match (item, old) {
                (Lookup::Hit(item), Some(old)) => (has_value(item, old), item.attributes.expiry),
                (Lookup::Hit(_), None) => (false, Expiry::Never),
                (_, old) => (old.is_none(), Expiry::Never),
            };
            let change = if is_same { new.change(expiry, tags, is_uploaded) } else { Change::Keep };
            (change, is_same)
        })?;
        Ok(updated.result)
    }
}
