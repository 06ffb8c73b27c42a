//! Iterators over all keys and values.

use crate::cache::Cache;
use crate::workers::Claim;
use bytes::Bytes;
use larder_store::segment::Walk;
use larder_store::{WalkState, Walks};
use std::fmt;
use std::task::Waker;

/// The number of keys that an iterator reads in one step.
const STEP: usize = 64;

impl Cache {
    /// Returns an iterator over the keys of all values.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// cache.insert("user:1", "Ada")?;
    /// cache.insert("user:2", "Bob")?;
    /// cache.insert("page:1", "<html>")?;
    /// for key in cache.keys().filter(|key| key.starts_with(b"user:")) {
    ///     cache.remove(key);
    /// }
    /// assert_eq!(cache.keys().collect::<Vec<_>>(), ["page:1"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The iterator is weakly consistent. It returns each key that exists during the whole
    /// iteration at least once, in no particular order. It may return a key again if a write moves
    /// the item within the index. If thousands of items move between two steps, it reads a part of
    /// the index again, and returns the keys of this part again. The iterator may or may not return
    /// a key that is stored or removed during the iteration.
    ///
    /// The iterator reads about 64 keys in each step, and pins no items between two steps, so the
    /// caller may take any time and may use the cache. For each iterator, the cache keeps up to 32
    /// KiB of reports about moved items. The iterator visits the whole index. [`crate::Stats`] do
    /// not count its keys as lookups, and eviction does not count them as uses.
    #[must_use]
    pub fn keys(&self) -> Keys<'_> {
        let walk = self.core.claim().walk();
        Keys { cache: self, walk, read: Vec::new(), is_over: false }
    }

    /// Returns an iterator over all keys and copies of their values. It has the properties of
    /// [`Cache::keys`]. The iterator looks up each value just before it returns the value, and
    /// omits values that were removed after it had read their keys.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = larder_cache::Cache::builder().build()?;
    /// cache.insert("a", "1")?;
    /// cache.insert("b", "22")?;
    /// let bytes: usize = cache.iter().map(|(_, value)| value.len()).sum();
    /// assert_eq!(bytes, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { keys: self.keys() }
    }
}

impl<'c> IntoIterator for &'c Cache {
    type Item = (Bytes, Bytes);
    type IntoIter = Iter<'c>;

    fn into_iter(self) -> Iter<'c> {
        self.iter()
    }
}

/// An iterator over keys: see [`Cache::keys`].
pub struct Keys<'c> {
    cache: &'c Cache,
    walk: Walk,
    /// The keys that the last step has read and the iterator has not returned yet.
    read: Vec<Bytes>,
    is_over: bool,
}

impl Iterator for Keys<'_> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        while self.read.is_empty() && !self.is_over {
            self.is_over = self.cache.core.claim().read_keys(&mut self.walk, &mut self.read);
        }
        self.read.pop()
    }
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// An iterator over keys and values: see [`Cache::iter`].
#[derive(Debug)]
pub struct Iter<'c> {
    keys: Keys<'c>,
}

impl Iterator for Iter<'_> {
    type Item = (Bytes, Bytes);

    fn next(&mut self) -> Option<(Bytes, Bytes)> {
        loop {
            let key = self.keys.next()?;
            if let Some(value) = self.keys.cache.peek(&key) {
                return Some((key, value));
            }
        }
    }
}

impl Claim<'_> {
    fn walk(&mut self) -> Walk {
        self.context().engine.walk()
    }

    /// Appends copies of the next keys to `keys`. Returns whether the walk has ended.
    fn read_keys(&mut self, walk: &mut Walk, keys: &mut Vec<Bytes>) -> bool {
        // The cache has no flash, so a step never waits.
        let state = self.context().engine.continue_walk(walk, STEP, Waker::noop(), |key, _| {
            keys.push(Bytes::copy_from_slice(key));
        });
        state == WalkState::End
    }
}
