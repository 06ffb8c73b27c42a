//! An engine over [`dashmap`](::dashmap): concurrent hash maps under locks. It cannot evict: a store
//! that would exceed the limit is refused.
//!
//! The cache is cut into many small maps rather than one, so that looking through one of them for
//! dead items, or growing one, stops few others and is over soon.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::map_engine::{Budget, Core, Hasher, LARGE_LEN_MIN, Record, Rounds, Step, Verdict};
use crate::{
    Access, Change, Engine, EvictionObserver, Gauges, HashedKey, Item, LimitRefused, Lookup,
    Refusal, Seconds, SizeClasses, Updated,
};
use ::dashmap::{DashMap, Entry};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::map_engine::{SharedLease, Upload};

/// How a cache is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Memory for items, uploads and the index, in bytes. An estimate: the allocator's own losses
    /// are not known here.
    pub limit_bytes: usize,
    /// Keep a CAS for each item.
    pub cas: bool,
    /// How items are counted by size.
    pub classes: SizeClasses,
    /// For the hash function; drawn at random by who starts a cache.
    pub seed: u64,
}

/// A cache. Clones are the same cache.
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// Sets a cache up. Memory is taken as it fills.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { limit_bytes, cas, classes, seed } = config;
        let budget = Budget::new(limit_bytes);
        let budgets = [Arc::clone(&budget), budget];
        let core = Core::new(classes, seed, cas, OVERHEAD, budgets);
        let map = || DashMap::with_hasher_and_shard_amount(core.hasher, 2);
        let parts = (0..PARTS).map(|_| map()).collect();
        let shared = Shared { core, parts, sweep: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Changes the memory limit. Nothing is evicted: above a lower one stores are refused until
    /// enough was removed.
    ///
    /// # Errors
    /// None; other engines have some.
    pub fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.shared.core.items.set_limit(bytes);
        Ok(())
    }

    /// There are no evictions to tell of; other engines have some.
    pub fn observe_evictions(&self, observer: EvictionObserver) {
        self.shared.core.observe_evictions(observer);
    }

    /// A way in for one thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared), now: self.shared.core.now() }
    }
}

type Part = DashMap<Box<[u8]>, Record, Hasher>;

#[derive(Debug)]
struct Shared {
    core: Core,
    parts: Box<[Part]>,
    sweep: Mutex<Sweep>,
}

/// Where the search for dead items is.
#[derive(Debug, Default)]
struct Sweep {
    rounds: Rounds,
    /// Parts that this round has still to look at.
    left: usize,
}

/// How many maps; a power of two.
const PARTS: usize = 256;

/// Bytes that an item takes beside key and value: a slot of a table that is at least half full, and
/// what the allocator adds to key and value. Measured: 200 to 260 with glibc's.
const OVERHEAD: usize = size_of::<(Box<[u8]>, Record)>() * 2 + 48;

impl Shared {
    fn part(&self, hash: u64) -> &Part {
        // Bits that the map itself uses neither to find a shard nor, short of 2^32 items, a slot.
        let part = (hash >> 32) as usize % PARTS;
        self.parts.get(part).expect("there are PARTS of them")
    }

    /// Removes an item that was found dead.
    fn remove_expired(&self, key: HashedKey<'_>, now: Seconds) {
        let flush_generation = self.core.flush_generation();
        let part = self.part(key.hash);
        let removed = part
            .remove_if(key.bytes, |_, record| !record.liveness(now, flush_generation).is_live());
        if let Some((key, record)) = removed {
            self.core.forget(key.len(), &record);
        }
    }

    /// Removes the dead of one part.
    fn sweep(&self, part: &Part, now: Seconds) {
        let flush_generation = self.core.flush_generation();
        part.retain(|key, record| {
            let live = record.liveness(now, flush_generation).is_live();
            if !live {
                self.core.count_reclaimed(key.len(), record, true);
                self.core.forget(key.len(), record);
            }
            live
        });
    }

    /// The next part to look at, and whether others follow.
    fn next_part(&self, now: Seconds) -> Option<(&Part, bool)> {
        let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        if sweep.left == 0 && sweep.rounds.begin(now, self.core.flush_generation()) {
            sweep.left = PARTS;
        }
        sweep.left = sweep.left.checked_sub(1)?;
        Some((self.parts.get(sweep.left)?, sweep.left > 0))
    }
}

/// Where a walk over all items is: one part's keys are taken at a time.
#[derive(Debug, Default)]
pub struct Walk {
    /// Parts whose keys were taken.
    begun: usize,
    /// Keys of the last of them that are still to be shown.
    keys: Vec<Box<[u8]>>,
}

impl Walk {
    fn next<'s>(&mut self, shared: &'s Shared) -> Option<(&'s Part, Box<[u8]>)> {
        while self.keys.is_empty() {
            let part = shared.parts.get(self.begun)?;
            self.begun += 1;
            self.keys = part.iter().map(|entry| entry.key().clone()).collect();
        }
        Some((shared.parts.get(self.begun.checked_sub(1)?)?, self.keys.pop()?))
    }
}

/// One thread's way into a [`Cache`].
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    now: Seconds,
}

impl Engine for Handle {
    type Lease = SharedLease;
    type Upload = Upload;
    type Walk = Walk;
    type Fetch = std::convert::Infallible;
    type Position = std::convert::Infallible;

    fn hash(&self, key: &[u8]) -> u64 {
        self.shared.core.hash(key)
    }

    fn begin_batch(&mut self, now: Seconds) {
        self.now = now;
        self.shared.core.advance(now);
    }

    fn end_batch(&mut self) {}

    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, SharedLease>) -> R,
    ) -> Lookup<R> {
        let Self { shared, now } = self;
        let Some(record) = shared.part(key.hash).get(key.bytes) else { return Lookup::Miss };
        let liveness = record.liveness(*now, shared.core.flush_generation());
        let lookup = liveness.lookup(|| {
            let item = record.lend();
            if access == Access::Tracked {
                record.note_access(*now);
            }
            read(&item)
        });
        drop(record);
        if !liveness.is_live() {
            shared.remove_expired(key, *now);
        }
        lookup
    }

    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: impl FnMut(Lookup<&Item<'_, SharedLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let Shared { core, .. } = &*self.shared;
        let entry = self.shared.part(key.hash).entry(key.bytes.into());
        let found = match &entry {
            Entry::Occupied(entry) => Some(entry.get()),
            Entry::Vacant(_) => None,
        };
        let Step { verdict, updated } = core.step(self.now, key, found, upload, decide);
        let old = match (verdict, entry) {
            (Verdict::Store(record), Entry::Occupied(mut entry)) => Some(entry.insert(record)),
            (Verdict::Remove, Entry::Occupied(entry)) => Some(entry.remove()),
            (Verdict::Store(record), Entry::Vacant(entry)) => {
                entry.insert(record);
                None
            }
            (Verdict::Remove, Entry::Vacant(_)) | (Verdict::Keep, _) => None,
        };
        old.iter().for_each(|old| core.forget(key.bytes.len(), old));
        updated
    }

    fn upload_len_min(&self) -> usize {
        LARGE_LEN_MIN
    }

    fn upload(&mut self, len: usize) -> Result<Upload, Refusal> {
        Upload::new(&self.shared.core.uploads, len)
    }

    fn extend(&mut self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        upload.extend(bytes)
    }

    fn flush(&mut self, at: Option<Seconds>) {
        self.shared.core.flush(at);
    }

    fn maintain(&mut self, now: Seconds) -> bool {
        self.begin_batch(now);
        let Some((part, more)) = self.shared.next_part(now) else { return false };
        self.shared.sweep(part, now);
        more
    }

    fn crawl_soon(&mut self) {
        let mut sweep = self.shared.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        sweep.left = PARTS;
    }

    fn walk(&self) -> Walk {
        Walk::default()
    }

    fn walk_on(
        &mut self,
        walk: &mut Walk,
        items: usize,
        mut visit: impl FnMut(&[u8], &Item<'_, SharedLease>),
    ) -> bool {
        let Self { shared, now } = self;
        for _ in 0..items {
            let Some((part, key)) = walk.next(shared) else { return false };
            if let Some(record) = part.get(&key)
                && record.liveness(*now, shared.core.flush_generation()).is_live()
            {
                visit(&key, &record.lend());
            }
        }
        true
    }

    fn gauges(&self) -> Gauges {
        let slots: usize = self.shared.parts.iter().map(DashMap::capacity).sum();
        Gauges {
            index_bytes: (slots * size_of::<(Box<[u8]>, Record)>()) as u64,
            index_power: slots.checked_ilog2().unwrap_or(0),
            ..self.shared.core.gauges(self.shared.core.items.limit())
        }
    }

    fn reset_counters(&self) {
        self.shared.core.stats.reset();
    }
}
