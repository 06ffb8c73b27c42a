//! An engine over [`moka`](::moka): a concurrent cache with its own eviction.
//!
//! Expiry and flushes are this engine's, for moka's follow a clock of their own. An untracked look
//! counts for moka's eviction all the same: it has no look without a trace.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

use crate::map_engine::{Budget, Core, Hasher, LARGE_LEN_MIN, Record, Rounds, Step, Verdict};
use crate::{
    Access, Change, Engine, EvictionObserver, Gauges, HashedKey, Item, LimitRefused, Lookup,
    Refusal, Seconds, SizeClasses, Updated,
};
use ::moka::notification::RemovalCause;
use ::moka::ops::compute::Op;
use ::moka::policy::EvictionPolicy;
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use crate::map_engine::{SharedLease, Upload};

/// How a cache is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Memory for items and the index, in bytes. An estimate: the allocator's own losses are not
    /// known here, and eviction trails behind by some hundred small items or one large one. Uploads
    /// take up to half of it beside.
    pub limit_bytes: usize,
    /// Keep a CAS for each item.
    pub cas: bool,
    /// How items are counted by size.
    pub classes: SizeClasses,
    /// For the hash function; drawn at random by who starts a cache.
    pub seed: u64,
    /// Who goes first when room is needed.
    pub policy: Policy,
}

/// Who goes first when room is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Who was used least lately. Whatever is stored stays for a while, as in memcached.
    #[default]
    Lru,
    /// Who is used least often; a new item that is less wanted than an old one does not get in.
    TinyLfu,
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
        let Config { limit_bytes, cas, classes, seed, policy } = config;
        let budgets = [Budget::unlimited(limit_bytes), Budget::new(limit_bytes / 2)];
        let core = Arc::new(Core::new(classes, seed, cas, OVERHEAD, budgets));
        let cache = build(&core, limit_bytes, policy);
        Self { shared: Arc::new(Shared { core, limit_bytes, cache, sweep: Mutex::default() }) }
    }

    /// Moka's limit is fixed when it is built: another one is refused.
    ///
    /// # Errors
    /// [`LimitRefused`], unless it is the limit that it has.
    pub fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        let limit = self.shared.limit_bytes;
        if bytes == limit { Ok(()) } else { Err(LimitRefused { min: limit, max: limit }) }
    }

    /// Has `observer` told of every eviction from now on. The first one stays.
    pub fn observe_evictions(&self, observer: EvictionObserver) {
        self.shared.core.observe_evictions(observer);
    }

    /// A way in for one thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared), now: self.shared.core.now() }
    }
}

type Records = ::moka::sync::Cache<Vec<u8>, Arc<Record>, Hasher>;

fn build(core: &Arc<Core>, limit_bytes: usize, policy: Policy) -> Records {
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
        .eviction_listener(move |key, record, cause| count_out(&counting, &key, &record, cause))
        .build_with_hasher(core.hasher)
}

/// Whatever leaves moka passes here, once.
fn count_out(core: &Core, key: &[u8], record: &Record, cause: RemovalCause) {
    core.forget(key.len(), record);
    let dead = !record.liveness(core.now(), core.flush_generation()).is_live();
    match cause {
        RemovalCause::Size if dead => core.count_reclaimed(key.len(), record, false),
        RemovalCause::Size => core.count_evicted(key, record),
        RemovalCause::Expired | RemovalCause::Explicit | RemovalCause::Replaced => (),
    }
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    limit_bytes: usize,
    cache: Records,
    sweep: Mutex<Sweep>,
}

/// The search for dead items. Moka does it, some hundred items at a time.
#[derive(Debug, Default)]
struct Sweep {
    rounds: Rounds,
    /// Held by moka until it is through.
    running: Weak<()>,
}

/// Bytes that an item takes beside key and value: its record, a key of moka's, an entry in its table
/// and two queues, and what the allocator adds to each. Measured: 480 to 540 with glibc's.
const OVERHEAD: usize = size_of::<Record>() + 430;

impl Shared {
    /// Runs `step` on what is under `key`, while nobody else updates it.
    fn compute(&self, key: &[u8], step: impl FnOnce(Option<&Record>) -> Verdict) {
        self.cache.entry_by_ref(key).and_compute_with(|entry| {
            match step(entry.as_ref().map(|entry| &**entry.value())) {
                Verdict::Keep => Op::Nop,
                Verdict::Remove => {
                    // Moka forgets to count a store that is removed before it has dealt with it: its
                    // sum would drift away from what is there.
                    self.cache.run_pending_tasks();
                    Op::Remove
                }
                Verdict::Store(record) => Op::Put(Arc::new(record)),
            }
        });
    }

    /// Removes an item that was found dead.
    fn remove_expired(&self, key: &[u8], now: Seconds) {
        let flush_generation = self.core.flush_generation();
        self.compute(key, |record| {
            let dead =
                record.is_some_and(|record| !record.liveness(now, flush_generation).is_live());
            if dead { Verdict::Remove } else { Verdict::Keep }
        });
    }

    /// Has moka look for dead items when it is time to; whether it is at it.
    fn sweep(&self, now: Seconds) -> bool {
        let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        if sweep.running.strong_count() == 0
            && sweep.rounds.begin(now, self.core.flush_generation())
        {
            let running = Arc::new(());
            sweep.running = Arc::downgrade(&running);
            self.start_sweep(now, running);
        }
        sweep.running.strong_count() > 0
    }

    fn start_sweep(&self, now: Seconds, running: Arc<()>) {
        let core = Arc::clone(&self.core);
        let is_dead = move |key: &Vec<u8>, record: &Arc<Record>| {
            let _running = &running;
            let dead = !record.liveness(now, core.flush_generation()).is_live();
            if dead {
                core.count_reclaimed(key.len(), record, true);
            }
            dead
        };
        self.cache.invalidate_entries_if(is_dead).expect("closures were asked for");
    }
}

type Entries<'c> = ::moka::sync::Iter<'c, Vec<u8>, Arc<Record>>;

self_cell::self_cell!(
    /// Moka's iterator with the cache that it borrows.
    struct Steps {
        owner: Arc<Shared>,
        #[not_covariant]
        dependent: Entries,
    }
);

/// Where a walk over all items is. Moka takes the keys of a 64th of its table at a time.
pub struct Walk(Steps);

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
        let Some(record) = shared.cache.get(key.bytes) else { return Lookup::Miss };
        let liveness = record.liveness(*now, shared.core.flush_generation());
        if !liveness.is_live() {
            shared.remove_expired(key.bytes, *now);
        }
        liveness.lookup(|| {
            let item = record.lend();
            if access == Access::Tracked {
                record.note_access(*now);
            }
            read(&item)
        })
    }

    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: impl FnMut(Lookup<&Item<'_, SharedLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let Self { shared, now } = self;
        let mut told = None;
        let mut large = false;
        shared.compute(key.bytes, |found| {
            let Step { verdict, updated } = shared.core.step(*now, key, found, upload, decide);
            large = matches!(&verdict, Verdict::Store(record) if record.is_large());
            told = Some(updated);
            verdict
        });
        if large {
            // Moka lets hundreds of stores wait before it evicts for them: too many of this size.
            shared.cache.run_pending_tasks();
        }
        told.expect("a computation asks once")
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
        let sweeping = self.shared.sweep(now);
        self.shared.cache.run_pending_tasks();
        sweeping
    }

    fn crawl_soon(&mut self) {
        let mut sweep = self.shared.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        sweep.rounds = Rounds::default();
    }

    fn walk(&self) -> Walk {
        Walk(Steps::new(Arc::clone(&self.shared), |shared| shared.cache.iter()))
    }

    fn walk_on(
        &mut self,
        walk: &mut Walk,
        items: usize,
        mut visit: impl FnMut(&[u8], &Item<'_, SharedLease>),
    ) -> bool {
        let Self { shared, now } = self;
        for _ in 0..items {
            let Some((key, record)) = walk.0.with_dependent_mut(|_, steps| steps.next()) else {
                return false;
            };
            if record.liveness(*now, shared.core.flush_generation()).is_live() {
                visit(&key, &record.lend());
            }
        }
        true
    }

    fn gauges(&self) -> Gauges {
        let gauges = self.shared.core.gauges(self.shared.limit_bytes);
        let slots = gauges.items.next_power_of_two();
        Gauges {
            index_bytes: slots * size_of::<usize>() as u64,
            index_power: slots.ilog2(),
            ..gauges
        }
    }

    fn reset_counters(&self) {
        self.shared.core.stats.reset();
    }
}
