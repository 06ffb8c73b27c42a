//! An engine over [`moka`](::moka): a concurrent cache with its own eviction.
//!
//! This engine implements expiry and flushes itself, because moka would use its own clock for them.
//! An untracked lookup still counts for moka's eviction: moka has no lookup that does not count.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::map_engine::{self, Budget, Core, Hasher, Map, Record, SweepSchedule, Verdict};
use crate::{HashedKey, LimitRefused, Seconds, SizeClasses};
use ::moka::notification::RemovalCause;
use ::moka::ops::compute::Op;
use ::moka::policy::EvictionPolicy;
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use crate::map_engine::{SharedLease, Upload};

/// The configuration of a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Memory for items and the index, in bytes. The cache estimates its memory use, because the
    /// overhead of the memory allocator is not known. Moka evicts late, so the cache may exceed the
    /// limit by a few hundred small items or by one large item. Uploads may use up to another half
    /// of the limit.
    pub limit_bytes: usize,
    /// Whether to store a CAS with each item.
    pub cas: bool,
    /// The size classes of the statistics.
    pub classes: SizeClasses,
    /// The seed of the hash function. The program that starts a cache chooses it at random.
    pub seed: u64,
    /// The eviction policy.
    pub policy: Policy,
}

/// The order in which items are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The least recently used items. Every new item is admitted, as in memcached.
    #[default]
    Lru,
    /// The least frequently used items. A new item is not admitted if it is used less often than
    /// the item that it would displace.
    TinyLfu,
}

/// A cache. Clones share the cache.
pub type Cache = map_engine::Cache<Records>;

/// One thread's access to a [`Cache`].
pub type Handle = map_engine::Handle<Records>;

impl Cache {
    /// Creates a cache. The cache allocates memory as items are added, not at its creation.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { limit_bytes, cas, classes, seed, policy } = config;
        let budgets = [Budget::unlimited(limit_bytes), Budget::new(limit_bytes / 2)];
        let core = Arc::new(Core::new(classes, seed, cas, OVERHEAD, budgets));
        let cache = build(&core, limit_bytes, policy);
        Self::over(Records { core, limit_bytes, cache, sweep: Mutex::default() })
    }
}

type MokaCache = ::moka::sync::Cache<Vec<u8>, Arc<Record>, Hasher>;

fn build(core: &Arc<Core>, limit_bytes: usize, policy: Policy) -> MokaCache {
    let (weighing, counting) = (Arc::clone(core), Arc::clone(core));
    let weigh = move |key: &Vec<u8>, record: &Arc<Record>| {
        u32::try_from(weighing.charge(key.len(), record.value.len())).unwrap_or(u32::MAX)
    };
    ::moka::sync::Cache::builder()
        .max_capacity(limit_bytes as u64)
        .eviction_policy(match policy {
            Policy::Lru => EvictionPolicy::lru(),
            Policy::TinyLfu => EvictionPolicy::tiny_lfu(),
        })
        .weigher(weigh)
        .support_invalidation_closures()
        .eviction_listener(move |key, record, cause| {
            count_removal(&counting, &key, &record, cause);
        })
        .build_with_hasher(core.hasher)
}

/// Subtracts a record that has left moka from the counts. If moka has evicted the record to stay
/// within the limit, counts an eviction, or a reclaimed item if the item was no longer valid. Moka
/// calls this function once for each record that leaves the map.
fn count_removal(core: &Core, key: &[u8], record: &Record, cause: RemovalCause) {
    core.forget(key.len(), record);
    match cause {
        RemovalCause::Size if core.liveness(record, core.now()).is_live() => {
            core.count_evicted(key, record);
        }
        RemovalCause::Size => core.count_reclaimed(key, record, false),
        RemovalCause::Expired | RemovalCause::Explicit | RemovalCause::Replaced => (),
    }
}

/// The items of a cache.
#[derive(Debug)]
pub struct Records {
    core: Arc<Core>,
    limit_bytes: usize,
    cache: MokaCache,
    sweep: Mutex<Sweep>,
}

/// The search for expired items. Moka runs it, a few hundred items at a time.
#[derive(Debug, Default)]
struct Sweep {
    schedule: SweepSchedule,
    /// Moka holds the strong reference until the round ends, so this reference shows whether a
    /// round is under way.
    running: Weak<()>,
}

/// The estimated memory overhead of an item in bytes, in addition to its key and value: its record,
/// moka's key, an entry in moka's table and in two queues, and the allocator's overhead for each.
/// Measurements with glibc's allocator gave 480 to 540 bytes.
const OVERHEAD: usize = size_of::<Record>() + 430;

impl Records {
    fn start_sweep(&self, now: Seconds, running: Arc<()>) {
        let core = Arc::clone(&self.core);
        let is_expired = move |key: &Vec<u8>, record: &Arc<Record>| {
            let _running = &running;
            let is_expired = !core.liveness(record, now).is_live();
            if is_expired {
                core.count_reclaimed(key, record, true);
            }
            is_expired
        };
        self.cache
            .invalidate_entries_if(is_expired)
            .expect("the cache was built with support for invalidation closures");
    }
}

type Entries<'c> = ::moka::sync::Iter<'c, Vec<u8>, Arc<Record>>;

self_cell::self_cell!(
    /// Moka's iterator, together with the cache that it borrows from. The iterator copies the keys
    /// of a 64th of moka's table at a time.
    pub struct RecordWalk {
        owner: Arc<Records>,
        #[not_covariant]
        dependent: Entries,
    }
);

impl Map for Records {
    type Walk = RecordWalk;

    fn core(&self) -> &Core {
        &self.core
    }

    fn read<R>(&self, key: HashedKey<'_>, read: impl FnOnce(&Record) -> R) -> Option<R> {
        self.cache.get(key.bytes).map(|record| read(&record))
    }

    fn write(&self, key: HashedKey<'_>, decide: impl FnOnce(Option<&Record>) -> Verdict) {
        let mut is_large = false;
        self.cache.entry_by_ref(key.bytes).and_compute_with(|entry| {
            match decide(entry.as_ref().map(|entry| &**entry.value())) {
                Verdict::Keep => Op::Nop,
                Verdict::Remove => {
                    // Moka adds the bytes of a new item to its sum in a pending task. If the item
                    // were removed before that task runs, the sum would stay wrong.
                    self.cache.run_pending_tasks();
                    Op::Remove
                }
                Verdict::Store(record) => {
                    is_large = record.is_large();
                    Op::Put(Arc::new(record))
                }
            }
        });
        if is_large {
            // Moka delays evictions for hundreds of stores. If the stored items are large, the
            // cache would exceed its limit by too much.
            self.cache.run_pending_tasks();
        }
    }

    fn sweep(&self, now: Seconds) -> bool {
        let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        let is_running = sweep.running.strong_count() > 0;
        if !is_running && sweep.schedule.begin(now, self.core.flush_generation()) {
            let running = Arc::new(());
            sweep.running = Arc::downgrade(&running);
            self.start_sweep(now, running);
        }
        let is_running = sweep.running.strong_count() > 0;
        drop(sweep);
        self.cache.run_pending_tasks();
        is_running
    }

    fn sweep_soon(&self) {
        let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        sweep.schedule = SweepSchedule::default();
    }

    fn walk(self: &Arc<Self>) -> RecordWalk {
        RecordWalk::new(Arc::clone(self), |records| records.cache.iter())
    }

    fn continue_walk(&self, walk: &mut RecordWalk, visit: impl FnOnce(&[u8], &Record)) -> bool {
        let next = walk.with_dependent_mut(|_, entries| entries.next());
        next.inspect(|(key, record)| visit(key, record)).is_some()
    }

    fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Refuses every limit but the current one, because moka's limit is fixed at construction.
    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        let limit = self.limit_bytes;
        if bytes == limit { Ok(()) } else { Err(LimitRefused { min: limit, max: limit }) }
    }

    /// Estimates the number of slots as the smallest power of two that is at least `items`, because
    /// moka does not report the size of its table.
    fn slots(&self, items: u64) -> (u64, usize) {
        (items.next_power_of_two(), size_of::<usize>())
    }
}
