//! The keys that connections have read.

use super::subscription::Subscription;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of parts of the table. Each part has its own lock.
const PARTS: usize = 256;

/// The memory, in bytes, of a key with one reader, excluding the key's own bytes. The number
/// includes one entry in a hash table that is at least half full, two allocations, and the reader's
/// [`Subscription`], which stays in memory after the subscription has ended.
const KEY_OVERHEAD: usize = 160;
/// A full part evicts one in this many of its keys at once.
const EVICTED_SHARE: usize = 8;
/// The memory, in bytes, that each further reader adds to a key.
const READER_LEN: usize = size_of::<Arc<Subscription>>();

type Readers = Vec<Arc<Subscription>>;
type Keys = HashMap<Box<[u8]>, Readers>;

/// A bounded table from keys to the connections that have read them.
#[derive(Debug)]
pub(super) struct KeyTable {
    hasher: RandomState,
    parts: Vec<Mutex<Part>>,
    /// The maximum memory of a part, in bytes.
    part_len_max: usize,
    /// The memory of all parts, in bytes.
    len: AtomicUsize,
}

#[derive(Debug, Default)]
struct Part {
    keys: Keys,
    /// The memory of the keys and their readers, in bytes.
    len: usize,
}

impl KeyTable {
    /// Creates a table whose memory limit is `len_max` bytes. The memory of a part can exceed its
    /// share of the limit by one key.
    #[expect(
        clippy::disallowed_methods,
        reason = "no result depends on the seed, and clients must not be able to choose the part of a key"
    )]
    pub(super) fn new(len_max: usize) -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        let len = AtomicUsize::new(0);
        Self { hasher: RandomState::new(), parts, part_len_max: len_max / PARTS, len }
    }

    /// Adds a reader of a key. Returns the keys that were evicted to make room, with their readers.
    pub(super) fn add(&self, key: &[u8], reader: &Arc<Subscription>) -> Keys {
        let Some(mut part) = self.part(key) else { return Keys::new() };
        let find = |readers: &Readers| readers.binary_search_by_key(&address(reader), address);
        let len = match part.keys.get(key).map(find) {
            Some(Ok(_)) => return Keys::new(),
            Some(Err(_)) => READER_LEN,
            None => KEY_OVERHEAD + key.len(),
        };
        let evicted = self.make_room(&mut part, len);
        let len = match part.keys.get_mut(key) {
            Some(readers) => {
                let before = readers.len();
                // Remove ended readers only if the number of readers is a power of two, because it
                // takes time to examine all of them.
                if before.is_power_of_two() {
                    readers.retain(|reader| !reader.has_ended());
                }
                let ended = (before - readers.len()) * READER_LEN;
                let (Ok(at) | Err(at)) = find(readers);
                readers.insert(at, Arc::clone(reader));
                self.subtract(&mut part, ended);
                READER_LEN
            }
            None => {
                part.keys.insert(key.into(), vec![Arc::clone(reader)]);
                KEY_OVERHEAD + key.len()
            }
        };
        part.len += len;
        self.len.fetch_add(len, Ordering::Relaxed);
        evicted
    }

    /// Evicts keys until the part can store `len` more bytes within its limit, or is empty. Returns
    /// the evicted keys.
    fn make_room(&self, part: &mut Part, len: usize) -> Keys {
        let mut evicted = Keys::new();
        while part.len + len > self.part_len_max && !part.keys.is_empty() {
            // The map returns its keys in the order of their hashes, so the evicted keys are
            // practically random.
            let count = part.keys.len().div_ceil(EVICTED_SHARE);
            let removed: Vec<_> = part.keys.extract_if(|_, _| true).take(count).collect();
            for (key, readers) in removed {
                self.subtract(part, memory(&key, &readers));
                evicted.insert(key, readers);
            }
        }
        evicted
    }

    fn subtract(&self, part: &mut Part, len: usize) {
        part.len -= len;
        self.len.fetch_sub(len, Ordering::Relaxed);
    }

    /// Removes a key, and returns its readers.
    pub(super) fn take(&self, key: &[u8]) -> Readers {
        let Some(mut part) = self.part(key) else { return Readers::new() };
        let Some(readers) = part.keys.remove(key) else { return Readers::new() };
        self.subtract(&mut part, memory(key, &readers));
        readers
    }

    /// Removes, from a key, the readers for which `takes` returns true. Returns these readers.
    pub(super) fn take_some(&self, key: &[u8], takes: impl Fn(&Subscription) -> bool) -> Readers {
        let Some(mut part) = self.part(key) else { return Readers::new() };
        let Some(readers) = part.keys.get_mut(key) else { return Readers::new() };
        if readers.iter().all(|reader| takes(reader)) {
            drop(part);
            return self.take(key);
        }
        let taken: Readers = readers.extract_if(.., |reader| takes(reader)).collect();
        self.subtract(&mut part, taken.len() * READER_LEN);
        taken
    }

    /// Removes, from all keys, the readers for which `takes` returns true.
    pub(super) fn clear_some(&self, takes: impl Fn(&Subscription) -> bool) {
        for part in &self.parts {
            let part = &mut *lock(part);
            part.keys.retain(|_, readers| {
                readers.retain(|reader| !takes(reader));
                !readers.is_empty()
            });
            let left: usize = part.keys.iter().map(|(key, readers)| memory(key, readers)).sum();
            self.subtract(part, part.len - left);
        }
    }

    /// Removes all keys.
    pub(super) fn clear(&self) {
        for part in &self.parts {
            let Part { len, .. } = std::mem::take(&mut *lock(part));
            self.len.fetch_sub(len, Ordering::Relaxed);
        }
    }

    /// Returns the memory of the table, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns the number of keys.
    pub(super) fn count(&self) -> usize {
        self.parts.iter().map(|part| lock(part).keys.len()).sum()
    }

    fn part(&self, key: &[u8]) -> Option<MutexGuard<'_, Part>> {
        let part = self.hasher.hash_one(key) % PARTS as u64;
        self.parts.get(usize::try_from(part).ok()?).map(lock)
    }
}

/// Returns the memory of a key with its readers, in bytes.
fn memory(key: &[u8], readers: &Readers) -> usize {
    KEY_OVERHEAD + key.len() + (readers.len() - 1) * READER_LEN
}

/// Returns the address of a reader. The readers of a key are sorted by address.
fn address(reader: &Arc<Subscription>) -> usize {
    Arc::as_ptr(reader) as usize
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
