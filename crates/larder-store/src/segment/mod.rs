//! The engine that Larder is for: one region, cut into segments.
//!
//! Items are appended to open segments, found through an index of 8-byte words, evicted by S3-FIFO
//! a segment at a time, and read without a lock. Nothing but offsets is stored in the region.
//!
//! | file | what it knows |
//! |---|---|
//! | `layout` | where everything is in the region |
//! | `raw` | the region's memory: all unsafe access, and the invariants it leans on |
//! | `slot`, `header` | the packed words of index and item |
//! | `index`, `ghost` | which key lives where; which was dropped lately |
//! | `table` | what is known of each segment |
//! | `record`, `chain` | an item in its segment; large values |
//! | `alloc` | free segments and the queues |
//! | `handle`, `update`, `reclaim` | one thread's way in: reading; writing; making room |
//! | `walk` | going through all items |
//! | `mrc`, `stack` | the hit ratio under other limits, from a sample of the keys |
//!
//! # Invariants
//! 1. The three sentences of `raw`.
//! 2. At most one index word refers to a live key, but for the moment of a move, when two equal words
//!    do. Index words change only under the lock of their stripe; readers only raise frequencies.
//! 3. A sealed segment is in exactly one queue or owned by exactly one handle.
//! 4. A segment is retired when no index word refers into it, and free one epoch later; a chain also
//!    waits for its leases.
//! 5. Lock order: growth, then a stripe, then the allocator. No two stripes at once.

mod alloc;
mod chain;
mod ghost;
mod handle;
mod header;
mod index;
mod layout;
mod mrc;
mod raw;
mod reclaim;
mod record;
mod slot;
mod stack;
mod sync;
mod table;
mod tally;
mod update;
mod walk;

pub use chain::{ChainLease, Upload};
pub use handle::Handle;
pub use mrc::MissRatioCurve;
pub use walk::Walk;

use crate::{EvictionObserver, Gauges, LimitRefused, Seconds, SizeClasses};
use alloc::Alloc;
use index::Index;
use layout::{ENTRY_LEN, Layout, REGION_MIN, SEGMENTS_MIN};
use mrc::Mrc;
use rapidhash::v3::RapidSecrets;
use raw::Region;
use record::{Record, Witness};
use slot::Slot;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use sync::{AtomicU32, AtomicU64, AtomicUsize, Guard, Mutex, MutexGuard, Ordering};
use table::{RETIRED, Table};
use tally::Tally;

/// How a cache is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// All memory that items, index and bookkeeping may use, in bytes.
    pub limit_bytes: usize,
    /// Keep a CAS for each item: 8 bytes.
    pub cas: bool,
    /// How items are counted by size.
    pub classes: SizeClasses,
    /// For the hash function. Drawn at random by who starts a cache, so that nobody can choose keys
    /// that collide.
    pub seed: u64,
    /// Drop items to make room. Else a full cache refuses.
    pub evict: bool,
    /// The largest value in bytes; at most half of the limit can be stored.
    pub item_size_max: usize,
    /// How many handles will write: sizes the reserve and the number of lifetime classes.
    pub threads: usize,
}

impl Config {
    /// Bytes that an item takes beside key and value, index word and ghosts included, as a rule.
    fn overhead(&self) -> usize {
        if self.cas { 31 } else { 23 }
    }
}

/// Why a cache could not be set up.
#[derive(Debug)]
pub enum ConfigError {
    /// The limit is below what index, queues and reserve need, or beyond what locations reach.
    Limit {
        /// The smallest limit in bytes.
        min: usize,
        /// The largest, of what it may ever be raised to.
        max: u64,
    },
    /// The system gave no memory.
    Map(std::io::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { min, max } => {
                write!(f, "the memory limit must be {min} to {max} bytes")
            }
            Self::Map(error) => write!(f, "the system refused the memory: {error}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// A cache. Clones are the same cache.
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// Sets a cache up. Memory is reserved now, and taken from the system as it fills.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::growable(config, 0)
    }

    /// The same, with address space for a limit that [`Cache::set_limit`] may raise to
    /// `limit_bytes_max`, if the system gives so much.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn growable(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        Shared::new(config, limit_bytes_max).map(|shared| Self { shared: Arc::new(shared) })
    }

    /// Asks the system for huge pages, for all memory that is not in use yet: fewer misses of the
    /// processor's page tables, for memory that is taken in larger pieces.
    ///
    /// # Errors
    /// The system has none to give; all works without.
    pub fn use_huge_pages(&self) -> std::io::Result<()> {
        self.shared.table().region.use_huge_pages()
    }

    /// A way in for one thread, made on that thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.shared))
    }

    /// The cache's totals.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.shared.gauges()
    }

    /// What the hit ratio would be with less memory or more, going by a sample of what was looked up
    /// lately.
    #[must_use]
    pub fn miss_ratio_curve(&self) -> MissRatioCurve {
        self.shared.mrc.estimate()
    }

    /// Changes the memory limit. A higher one can be used at once; under a lower one items are
    /// evicted and memory is given back step by step, by [`crate::Engine::maintain`].
    ///
    /// # Errors
    /// [`LimitRefused`]: beyond what was reserved, or below what the index holds.
    pub fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.shared.set_limit(bytes)
    }

    /// Has `observer` told of every eviction from now on. The first one stays.
    pub fn observe_evictions(&self, observer: EvictionObserver) {
        // Who comes second is told nothing.
        let _ = self.shared.observer.set(observer);
    }

    /// Zeroes counters, but not what is there.
    pub fn reset_counters(&self) {
        self.shared.reset_counters();
    }
}

/// What all handles share. Apart from its count of references, which changes.
#[repr(align(128))]
pub(crate) struct Shared {
    index: Index<Table>,
    alloc: Mutex<Alloc>,
    /// Held by the one handle that grows the index.
    growth: Mutex<()>,
    tallies: Mutex<Vec<Arc<Tally>>>,
    secrets: RapidSecrets,
    config: Config,
    /// The limit as it is now, in bytes.
    limit_bytes: AtomicUsize,
    /// The same in segments.
    limit_segments: AtomicUsize,
    /// Segments from this number on have never been in use.
    segments_seen: AtomicUsize,
    /// Lifetime classes in use, 1 to [`update::CLASSES_MAX`].
    classes: AtomicU32,
    /// The next segment's.
    sequence: AtomicU32,
    /// Segments opened before this are void; 0 if none is.
    flush_floor: AtomicU32,
    /// When the pending flush is due; 0 if none is.
    flush_at: AtomicU32,
    /// The first CAS of the next block.
    cas_block: AtomicU64,
    /// Index words in use, in steps.
    slots_used: AtomicUsize,
    /// Segments of chains under lease, each lease counted.
    leased: AtomicUsize,
    /// Told of evictions.
    observer: OnceLock<EvictionObserver>,
    /// How often operators asked for a crawl.
    crawls: AtomicU32,
    /// How often they changed the limit.
    limits: AtomicU32,
    /// Keys that are followed to know what other limits would do.
    mrc: Mrc,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Stripes at most: enough that two writers seldom meet.
const STRIPES_MAX: usize = 1024;
/// Buckets that share a stripe at first. With fewer, chance fills some stripes long before the rest.
const STRIPE_BUCKETS: usize = 64;

/// Share of all segments that index and ghosts may have after the limit was lowered, in percent:
/// the index does not shrink, and items need the rest.
const INDEX_SHARE_MAX: usize = 60;

impl Shared {
    fn new(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        let refused = || ConfigError::Limit { min: REGION_MIN, max: slot::REGION_MAX };
        let layout = Layout::new(config.limit_bytes, limit_bytes_max).ok_or_else(refused)?;
        // A system that gives no address space beyond its memory gives what is needed at first.
        let (layout, region) = match Region::new(layout.region_len()) {
            Ok(region) => (layout, region),
            Err(_) => {
                let layout = Layout::new(config.limit_bytes, 0).ok_or_else(refused)?;
                (layout, Region::new(layout.region_len()).map_err(ConfigError::Map)?)
            }
        };
        let table = Table::new(Arc::new(region), layout);
        let narrow = |segments| u32::try_from(segments).map_err(|_| refused());
        let mut alloc = Alloc::new(narrow(layout.segments_first)?, narrow(layout.segments)?);
        let buckets = layout.buckets_per_segment() * layout.index_segments_first();
        for bucket in (0..buckets).step_by(layout.buckets_per_segment()) {
            let wants = table.wants(bucket);
            table.extend(bucket, std::iter::from_fn(|| alloc.take(0)).take(wants));
            alloc.indexing += wants;
        }
        let stripes = (buckets / STRIPE_BUCKETS).clamp(1, STRIPES_MAX);
        Ok(Self {
            index: Index::new(table, buckets, stripes),
            alloc: Mutex::new(alloc),
            growth: Mutex::new(()),
            tallies: Mutex::default(),
            secrets: RapidSecrets::seed(config.seed),
            limit_bytes: AtomicUsize::new(config.limit_bytes),
            limit_segments: AtomicUsize::new(layout.segments_first),
            segments_seen: AtomicUsize::new(layout.segments_first),
            classes: AtomicU32::new(update::class_count(layout.segments_first, config.threads)),
            mrc: Mrc::new(config.limit_bytes),
            config,
            sequence: AtomicU32::new(1),
            flush_floor: AtomicU32::new(0),
            flush_at: AtomicU32::new(0),
            cas_block: AtomicU64::new(1),
            slots_used: AtomicUsize::new(0),
            leased: AtomicUsize::new(0),
            observer: OnceLock::new(),
            crawls: AtomicU32::new(0),
            limits: AtomicU32::new(0),
        })
    }

    fn table(&self) -> &Table {
        &self.index.buckets
    }

    fn segment_len(&self) -> usize {
        self.table().layout.segment_len
    }

    /// Segments that there may be.
    fn limit_segments(&self) -> usize {
        self.limit_segments.load(Ordering::Relaxed)
    }

    /// Segments that ordinary writes leave to those that make room.
    fn reserve(&self) -> usize {
        (2 + 2 * self.config.threads).min(self.limit_segments() / 8)
    }

    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        let layout = &self.table().layout;
        let per_segment = layout.segment_len + ENTRY_LEN;
        let mut alloc = self.alloc();
        let segments_min = SEGMENTS_MIN.max((alloc.indexing * 100).div_ceil(INDEX_SHARE_MAX));
        let min = segments_min * per_segment;
        // What no segment fits in is none's loss.
        let max = (layout.segments + 1) * per_segment - 1;
        if bytes > max || bytes < min {
            return Err(LimitRefused { min, max });
        }
        let segments = layout.segments_within(bytes);
        alloc.set_limit(segments);
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        self.limit_segments.store(segments, Ordering::Relaxed);
        self.segments_seen.fetch_max(segments, Ordering::Relaxed);
        let classes = update::class_count(segments, self.config.threads);
        self.classes.store(classes, Ordering::Relaxed);
        // Threads seal what they have open: it may be too much under the new limit.
        self.limits.fetch_add(1, Ordering::Release);
        drop(alloc);
        self.mrc.set_limit(bytes);
        Ok(())
    }

    fn alloc(&self) -> MutexGuard<'_, Alloc> {
        // Nothing panics while it is held; were it so, its content would still be whole.
        self.alloc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets)
    }

    #[inline]
    fn record<'p>(&'p self, slot: Slot, witness: Witness<'p>) -> Record<'p> {
        Record::at(self.table(), slot.offset(), self.config.cas, witness)
    }

    /// Whether a flush has come after the item was stored.
    #[inline]
    fn is_flushed(&self, record: &Record<'_>) -> bool {
        let floor = self.flush_floor.load(Ordering::Acquire);
        floor != 0 && record.entry().sequence().load(Ordering::Acquire) < floor
    }

    /// Makes everything stored so far void.
    fn flush_now(&self) {
        self.flush_floor.store(self.sequence.load(Ordering::Acquire), Ordering::Release);
        // Segments that others hold open are below the floor now; they seal them before they write.
        self.mrc.clear();
    }

    fn flush_if_due(&self, now: Seconds) {
        let at = self.flush_at.load(Ordering::Relaxed);
        if at == 0 || at > now.0 {
            return;
        }
        if self.flush_at.compare_exchange(at, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.flush_now();
        }
    }

    fn class_of(&self, record: &Record<'_>) -> (usize, usize) {
        self.class_of_parts(record.key().len(), record.value_len(), record.client_flags())
    }

    /// The statistics class of an item and the bytes that it counts for.
    fn class_of_parts(&self, key_len: usize, value_len: usize, flags: u32) -> (usize, usize) {
        let footprint = self.config.classes.footprint(key_len, value_len, flags);
        (self.config.classes.class_of(footprint), footprint)
    }

    /// A segment that no index word refers into: free when the epoch has passed.
    fn retire(self: &Arc<Self>, segment: u32, guard: &Guard) {
        self.table().entry(segment).sealed().store(0, Ordering::Release);
        self.alloc().limbo += 1;
        let shared = Arc::clone(self);
        guard.defer(move || shared.recycle(segment));
        guard.flush();
    }

    fn recycle(&self, segment: u32) {
        let mut alloc = self.alloc();
        alloc.limbo -= 1;
        alloc.give_back(segment);
    }

    /// A chain whose item is gone: free when the epoch has passed and the last lease is given back.
    fn retire_chain(self: &Arc<Self>, first: u32, guard: &Guard) {
        self.alloc().limbo += self.chain_segments(first).count();
        let shared = Arc::clone(self);
        guard.defer(move || {
            // From here on nobody waits for it: a reader may hold it for as long as it likes.
            shared.alloc().limbo -= shared.chain_segments(first).count();
            let leases = shared.table().entry(first).leases().fetch_or(RETIRED, Ordering::AcqRel);
            if leases == 0 {
                shared.recycle_chain(first);
            }
        });
        guard.flush();
    }

    fn recycle_chain(&self, first: u32) {
        let segments: Vec<u32> = self.chain_segments(first).collect();
        let mut alloc = self.alloc();
        segments.into_iter().for_each(|segment| alloc.give_back(segment));
    }

    /// The segments of a chain, in order.
    fn chain_segments(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&segment| {
            self.table().entry(segment).next().load(Ordering::Relaxed).checked_sub(1)
        })
    }

    /// Counts `segments` as leased unless that would be more than half of all.
    fn lease(&self, segments: usize) -> bool {
        let max = self.limit_segments() / 2;
        let add = |leased: usize| (leased + segments <= max).then_some(leased + segments);
        self.leased.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn unlease(&self, segments: usize) {
        self.leased.fetch_sub(segments, Ordering::Relaxed);
    }

    fn tallies(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reset_counters(&self) {
        self.tallies().iter().for_each(|tally| tally.reset());
        self.mrc.reset();
    }

    fn gauges(&self) -> Gauges {
        let layout = &self.table().layout;
        let slots = self.index.len() * index::BUCKET_SLOTS;
        let classes = vec![Default::default(); self.config.classes.count()];
        let mut gauges = Gauges { classes, ..Gauges::default() };
        self.tallies().iter().for_each(|tally| tally.add_to(&mut gauges));
        let sum = |field: fn(&crate::ClassGauges) -> u64| {
            gauges.classes.iter().map(field).fold(0, u64::wrapping_add)
        };
        let (items, bytes, evictions) = (sum(|c| c.items), sum(|c| c.bytes), sum(|c| c.evicted));
        Gauges {
            items,
            bytes,
            evictions,
            index_bytes: (slots * size_of::<Slot>()) as u64,
            index_power: slots.ilog2(),
            index_growing: self.growth.try_lock().is_err(),
            limit_bytes: self.limit_bytes.load(Ordering::Relaxed) as u64,
            used_bytes: (self.alloc().used() * layout.segment_len) as u64,
            ..gauges
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;

#[cfg(all(test, shuttle))]
mod models;
