//! An engine over [`dashmap`](::dashmap): concurrent hash maps under locks. It cannot evict: a
//! store that would exceed the limit is refused.
//!
//! The cache is divided into many small maps. The engine searches one map at a time for expired
//! items, and each map grows separately. Searching or growing one map takes little time, and blocks
//! few other requests.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::map_engine::{self, Budget, Core, Hasher, Map, Record, SweepSchedule, Verdict};
use crate::{HashedKey, LimitRefused, Seconds, SizeClasses};
use ::dashmap::{DashMap, Entry};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::map_engine::{SharedLease, Upload};

/// The configuration of a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Memory for items, uploads and the index, in bytes. The cache estimates its memory use,
    /// because the overhead of the memory allocator is not known.
    pub limit_bytes: usize,
    /// Whether to store a CAS with each item.
    pub cas: bool,
    /// The size classes of the statistics.
    pub classes: SizeClasses,
    /// The seed of the hash function. The program that starts a cache chooses it at random.
    pub seed: u64,
}

/// A cache. Clones share the cache.
pub type Cache = map_engine::Cache<Parts>;

/// One thread's access to a [`Cache`].
pub type Handle = map_engine::Handle<Parts>;

impl Cache {
    /// Creates a cache. The cache allocates memory as items are added, not at its creation.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { limit_bytes, cas, classes, seed } = config;
        let budget = Budget::new(limit_bytes);
        let budgets = [Arc::clone(&budget), budget];
        let core = Core::new(classes, seed, cas, OVERHEAD, budgets);
        let map = || DashMap::with_hasher_and_shard_amount(core.hasher, 2);
        let parts = (0..PARTS).map(|_| map()).collect();
        Self::over(Parts { core, parts, sweep: Mutex::default() })
    }
}

type Part = DashMap<Box<[u8]>, Record, Hasher>;

/// The maps of a cache. The hash of an item's key selects its map.
#[derive(Debug)]
pub struct Parts {
    core: Core,
    parts: Box<[Part]>,
    sweep: Mutex<Sweep>,
}

/// The progress of the search for expired items.
#[derive(Debug, Default)]
struct Sweep {
    schedule: SweepSchedule,
    /// The number of parts that this round has yet to search.
    left: usize,
}

/// The number of maps; a power of two.
const PARTS: usize = 256;

/// The estimated memory overhead of an item in bytes, in addition to its key and value: a slot of a
/// table that is at least half full, and the overhead of two allocations. Measurements with glibc's
/// allocator gave 200 to 260 bytes.
const OVERHEAD: usize = size_of::<(Box<[u8]>, Record)>() * 2 + 48;

impl Parts {
    fn part(&self, hash: u64) -> &Part {
        // The part's map uses other bits of the hash: some for its shards and, with fewer than 2^32
        // items, some for its slots.
        let part = (hash >> 32) as usize % PARTS;
        self.parts.get(part).expect("there are PARTS of them")
    }

    /// Removes the expired and flushed items of one part.
    fn sweep_part(&self, part: &Part, now: Seconds) {
        part.retain(|key, record| {
            let is_live = self.core.liveness(record, now).is_live();
            if !is_live {
                self.core.count_reclaimed(key, record, true);
                self.core.forget(key.len(), record);
            }
            is_live
        });
    }

    /// Returns the next part to search, and whether more parts follow in the same round. Starts a
    /// round that is due. Returns `None` if no round is under way.
    fn next_part(&self, now: Seconds) -> Option<(&Part, bool)> {
        let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        if sweep.left == 0 && sweep.schedule.begin(now, self.core.flush_generation()) {
            sweep.left = PARTS;
        }
        sweep.left = sweep.left.checked_sub(1)?;
        Some((self.parts.get(sweep.left)?, sweep.left > 0))
    }
}

/// The state of a walk over all items. It copies the keys of one part at a time.
#[derive(Debug, Default)]
pub struct PartWalk {
    /// The number of parts whose keys were copied.
    parts_copied: usize,
    /// The keys of the last copied part that the walk has yet to visit.
    keys: Vec<Box<[u8]>>,
}

impl PartWalk {
    fn next<'p>(&mut self, parts: &'p [Part]) -> Option<(&'p Part, Box<[u8]>)> {
        while self.keys.is_empty() {
            let part = parts.get(self.parts_copied)?;
            self.parts_copied += 1;
            self.keys = part.iter().map(|entry| entry.key().clone()).collect();
        }
        Some((parts.get(self.parts_copied.checked_sub(1)?)?, self.keys.pop()?))
    }
}

impl Map for Parts {
    type Walk = PartWalk;

    fn core(&self) -> &Core {
        &self.core
    }

    fn read<R>(&self, key: HashedKey<'_>, read: impl FnOnce(&Record) -> R) -> Option<R> {
        self.part(key.hash).get(key.bytes).map(|record| read(&record))
    }

    fn write(&self, key: HashedKey<'_>, decide: impl FnOnce(Option<&Record>) -> Verdict) {
        let old = match self.part(key.hash).entry(key.bytes.into()) {
            Entry::Occupied(mut entry) => match decide(Some(entry.get())) {
                Verdict::Keep => None,
                Verdict::Remove => Some(entry.remove()),
                Verdict::Store(record) => Some(entry.insert(record)),
            },
            Entry::Vacant(entry) => {
                if let Verdict::Store(record) = decide(None) {
                    entry.insert(record);
                }
                None
            }
        };
        old.iter().for_each(|old| self.core.forget(key.bytes.len(), old));
    }

    fn sweep(&self, now: Seconds) -> bool {
        let Some((part, more)) = self.next_part(now) else { return false };
        self.sweep_part(part, now);
        more
    }

    fn sweep_soon(&self) {
        let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        sweep.left = PARTS;
    }

    fn walk(self: &Arc<Self>) -> PartWalk {
        PartWalk::default()
    }

    fn continue_walk(&self, walk: &mut PartWalk, visit: impl FnOnce(&[u8], &Record)) -> bool {
        let Some((part, key)) = walk.next(&self.parts) else { return false };
        if let Some(record) = part.get(&key) {
            visit(&key, &record);
        }
        true
    }

    fn limit_bytes(&self) -> usize {
        self.core.items.limit()
    }

    /// Changes the limit. This engine does not evict. After the limit was lowered, it refuses
    /// stores until enough items have been removed.
    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.core.items.set_limit(bytes);
        Ok(())
    }

    fn slots(&self, _: u64) -> (u64, usize) {
        let slots: usize = self.parts.iter().map(DashMap::capacity).sum();
        (slots as u64, size_of::<(Box<[u8]>, Record)>())
    }
}
