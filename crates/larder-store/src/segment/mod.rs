//! The engine that Larder is for: one region, cut into segments.
//!
//! Items are appended to open segments, found through an index of 8-byte words, evicted by S3-FIFO
//! a segment at a time, and read without a lock. Nothing but offsets is stored in the region.
//!
//! | file | what it knows |
//! |---|---|
//! | `layout`, `header_page` | where everything is in the region; what the region says of itself |
//! | `raw` | the region's memory: unsafe access, and the invariants it leans on |
//! | `slot`, `header` | the packed words of index and item |
//! | `index` | which key lives where |
//! | `epoch` | when memory that was removed can be used again |
//! | `table` | what is known of each segment |
//! | `record`, `chain`, `staging` | an item in its segment; large values, and putting them together |
//! | `alloc` | free segments and the queues, in the order of [`crate::eviction`] |
//! | `handle`, `member` | one thread's way in, and reading; what the others see of it |
//! | `open`, `update`, `cas` | writing: open segments, one item, CAS values |
//! | `flush` | making everything void at once |
//! | `room`, `evacuate`, `grow`, `shrink`, `expire` | making room, by subject |
//! | `walk` | going through all items |
//! | `mrc`, `stack` | the hit ratio under other limits, from a sample of the keys |
//!
//! # Invariants
//! 1. The three sentences of `raw`.
//! 2. At most one index word refers to a live key, but for the moment of a move, when two equal words
//!    do. Index words change only under the lock of their stripe; readers only raise frequencies.
//! 3. A sealed segment is in exactly one queue or owned by exactly one handle.
//! 4. A segment is retired when no index word refers into it, and free one epoch and its last lease
//!    later; so is a chain.
//! 5. Lock order: growth, then a stripe, then the allocator. No two stripes at once. The list of
//!    members comes before what a member leaves idle, and that before the allocator; who holds the
//!    allocator takes no other lock.
//! 6. Whatever was stored before a flush is in segments whose sequence is below the floor, and
//!    nobody appends to these or copies out of these afterwards: the floor rises, and segments get
//!    their sequence, under the allocator's lock, and who writes looks at the floor after its segment
//!    was opened.

mod alloc;
mod cas;
mod chain;
mod epoch;
mod evacuate;
mod expire;
mod flush;
mod grow;
mod handle;
mod header;
mod header_page;
mod index;
mod layout;
mod member;
mod mrc;
mod open;
mod raw;
mod record;
mod room;
mod shrink;
mod slot;
mod stack;
mod staging;
mod stats;
mod sync;
mod table;
mod update;
mod walk;

pub use chain::{ChainLease, Upload};
pub use handle::Handle;
pub use mrc::MissRatioCurve;
pub use walk::Walk;

use crate::eviction::{GhostEpoch, Ghosts};
use crate::{EvictionObserver, Gauges, LimitRefused, Overheld, Seconds, SizeClasses};
use alloc::{Alloc, DEAD_LEVELS, Retired};
use epoch::Epoch;
use header_page::Made;
use index::Index;
use layout::{Layout, REGION_MIN, SEGMENTS_MIN, STRIPES_MAX};
use member::Member;
use mrc::Mrc;
use rapidhash::v3::RapidSecrets;
use raw::Region;
use record::{Record, Witness};
use slot::Slot;
use stats::HandleStats;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use table::{RETIRED, SegmentState, Table};

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
    /// How many handles will write: sizes the reserve and how many segments each may have open.
    pub threads: usize,
    /// How much the size of items counts when room is made: 0, not at all; 1, as few items as
    /// possible are dropped, however many bytes these are. [`crate::eviction::SIZE_EXPONENT`] is
    /// between the two.
    pub size_exponent: f64,
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

    /// How many flushes took effect, delayed ones too. Each is counted after it took effect.
    #[must_use]
    pub fn flush_generation(&self) -> u64 {
        self.shared.table().header_page().order.flush_generation.load(Ordering::Acquire)
    }

    /// When the pending flush is due, if one is pending.
    #[must_use]
    pub fn flush_pending(&self) -> Option<Seconds> {
        let at = self.shared.table().header_page().shared.flush_at.load(Ordering::Acquire);
        u32::try_from(at).ok().filter(|at| *at != 0).map(Seconds)
    }

    /// Has `observer` told of every eviction from now on. The first one stays. An observer that
    /// panics ends the process: the item is half gone.
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
    members: Mutex<Vec<Arc<Member>>>,
    /// Counts of handles that are gone.
    departed: HandleStats,
    epoch: Epoch,
    /// How many handles there are.
    handles: AtomicUsize,
    /// Held by the one handle that empties segments where they take turns.
    evacuating: Mutex<()>,
    /// Memory of this epoch was waited for in vain: a reader is asleep. 0 if none was.
    stalled_epoch: AtomicU64,
    secrets: RapidSecrets,
    config: Config,
    /// The limit as it is now, in bytes.
    limit_bytes: AtomicUsize,
    /// The same in segments.
    limit_segments: AtomicUsize,
    /// Segments from this number on have never been in use.
    segments_seen: AtomicUsize,
    /// Lifetime classes in use, 1 to 8.
    lifetimes: AtomicU32,
    /// Segments that one handle may have open.
    open_budget: AtomicUsize,
    /// Index words in use, in steps.
    slots_used: AtomicUsize,
    /// Segments under lease, each counted once however many leases are on it.
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

/// Buckets that share a stripe at first. With fewer, chance fills some stripes long before the rest.
const STRIPE_BUCKETS: usize = 64;

/// Share of all segments that index and ghosts may have after the limit was lowered, in percent:
/// the index does not shrink, and items need the rest.
const INDEX_SHARE_MAX: usize = 60;

/// Where there are fewer segments than this for each handle, handles take turns.
const TIGHT_SHARE: usize = 8;

/// Ends the process if it is dropped: what was being changed is neither as before nor as wanted.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Shared {
    fn new(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        let refused = || ConfigError::Limit { min: REGION_MIN, max: slot::REGION_MAX };
        let page_len = raw::page_len();
        let layout =
            Layout::new(config.limit_bytes, limit_bytes_max, page_len).ok_or_else(refused)?;
        // A system that gives no address space beyond its memory gives what is needed at first.
        let (layout, region) = match Region::new(layout.region_len()) {
            Ok(region) => (layout, region),
            Err(_) => {
                let layout = Layout::new(config.limit_bytes, 0, page_len).ok_or_else(refused)?;
                (layout, Region::new(layout.region_len()).map_err(ConfigError::Map)?)
            }
        };
        let table = Table::new(region, layout);
        let narrow = |segments| u32::try_from(segments).map_err(|_| refused());
        let (limit, segments) = (narrow(layout.segments_first)?, narrow(layout.segments)?);
        let mut alloc = Alloc::new(limit, segments, config.size_exponent);
        let buckets = layout.buckets_per_segment() * layout.index_segments_first();
        for bucket in (0..buckets).step_by(layout.buckets_per_segment()) {
            let wants = table.wants(bucket);
            table.extend(bucket, std::iter::from_fn(|| alloc.take(0)).take(wants));
            alloc.indexing += wants;
        }
        let (seed, cas) = (config.seed, config.cas);
        table.header_page().begin(Made {
            segment_len: layout.segment_len,
            segments: layout.segments,
            seed,
            cas,
            buckets_first: buckets,
        });
        let stripes = (buckets / STRIPE_BUCKETS).clamp(1, STRIPES_MAX);
        let shared = Self {
            index: Index::new(table, buckets, stripes),
            alloc: Mutex::new(alloc),
            growth: Mutex::new(()),
            members: Mutex::default(),
            departed: HandleStats::new(config.classes.count()),
            epoch: Epoch::new(),
            handles: AtomicUsize::new(0),
            evacuating: Mutex::new(()),
            stalled_epoch: AtomicU64::new(0),
            secrets: RapidSecrets::seed(seed),
            limit_bytes: AtomicUsize::new(config.limit_bytes),
            limit_segments: AtomicUsize::new(0),
            segments_seen: AtomicUsize::new(0),
            lifetimes: AtomicU32::new(1),
            open_budget: AtomicUsize::new(0),
            mrc: Mrc::new(config.limit_bytes),
            config,
            slots_used: AtomicUsize::new(0),
            leased: AtomicUsize::new(0),
            observer: OnceLock::new(),
            crawls: AtomicU32::new(0),
            limits: AtomicU32::new(0),
        };
        shared.divide(layout.segments_first);
        Ok(shared)
    }

    /// Works out what follows from the number of segments that there may be.
    fn divide(&self, segments: usize) {
        let threads = self.config.threads;
        self.limit_segments.store(segments, Ordering::Relaxed);
        self.segments_seen.fetch_max(segments, Ordering::Relaxed);
        self.lifetimes.store(open::lifetime_count(segments, threads), Ordering::Relaxed);
        let budget = crate::eviction::open_budget(segments, threads);
        self.open_budget.store(budget, Ordering::Relaxed);
    }

    /// Whether there are so many handles for so few segments that they take turns; see `room`.
    fn is_tight(&self) -> bool {
        self.handles.load(Ordering::Relaxed) * TIGHT_SHARE > self.limit_segments()
    }

    fn join(&self, member: Arc<Member>) {
        self.members().push(member);
        self.handles.fetch_add(1, Ordering::Relaxed);
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

    /// Segments that may be open before handles append to what others have left open.
    fn open_max(&self) -> usize {
        let budget = self.open_budget.load(Ordering::Relaxed) * self.config.threads.max(1);
        budget.min(self.limit_segments() / open::OPEN_SHARE_MAX)
    }

    /// Segments that ordinary writes leave to those that make room.
    fn reserve(&self) -> usize {
        (2 + 2 * self.config.threads).min(self.limit_segments() / 8)
    }

    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        let layout = &self.table().layout;
        let mut alloc = self.alloc();
        let segments_min = SEGMENTS_MIN.max((alloc.indexing * 100).div_ceil(INDEX_SHARE_MAX));
        let min = layout.limit_for(segments_min);
        // What no segment fits in is none's loss.
        let max = layout.limit_for(layout.segments + 1) - 1;
        if bytes > max || bytes < min {
            return Err(LimitRefused { min, max });
        }
        let segments = layout.segments_within(bytes);
        alloc.set_limit(segments);
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        self.divide(segments);
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

    fn members(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle is gone: its counts stay.
    fn depart(&self, member: &Arc<Member>) {
        let mut members = self.members();
        members.retain(|other| !Arc::ptr_eq(other, member));
        self.handles.fetch_sub(1, Ordering::Relaxed);
        // Under the lock of the list, so that the counts are seen once.
        self.departed.absorb(&member.stats);
    }

    /// The oldest epoch that some handle may still be reading in; see [`Epoch::oldest`].
    fn oldest_pin(&self) -> u64 {
        self.epoch.oldest(self.members().iter().map(|member| &member.pin))
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets)
    }

    #[inline]
    fn record<'p>(&'p self, slot: Slot, witness: Witness<'p>) -> Record<'p> {
        let record = Record::at(self.table(), slot.offset(), self.config.cas, witness);
        strict_assert!(
            slot::tag(self.hash(record.key())) == slot.tag(),
            "index word and item are of one key"
        );
        record
    }

    fn ghost_epoch(&self) -> GhostEpoch {
        let epoch = self.table().header_page().order.ghost_epoch.load(Ordering::Relaxed);
        GhostEpoch::from_index(u8::try_from(epoch).unwrap_or_default())
    }

    /// The ghosts of a bucket. Under the lock of its stripe.
    fn ghosts(&self, words: [&AtomicU64; 2]) -> Ghosts {
        Ghosts(words.map(|word| word.load(Ordering::Relaxed)))
    }

    fn set_ghosts(&self, words: [&AtomicU64; 2], ghosts: Ghosts) {
        words.iter().zip(ghosts.0).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
    }

    fn class_of(&self, record: &Record<'_>) -> (usize, usize) {
        self.class_of_parts(record.key().len(), record.value_len(), record.client_flags())
    }

    /// The statistics class of an item and the bytes that it counts for.
    fn class_of_parts(&self, key_len: usize, value_len: usize, flags: u32) -> (usize, usize) {
        let footprint = self.config.classes.footprint(key_len, value_len, flags);
        (self.config.classes.class_of(footprint), footprint)
    }

    /// The level of a segment's dead share: all of them if nothing in it lives, else by its length.
    fn dead_level(&self, dead: u32, written: u32) -> usize {
        if dead >= written {
            return DEAD_LEVELS;
        }
        (dead as usize * DEAD_LEVELS) >> self.table().layout.segment_shift
    }

    /// Marks a record that no index word refers to any more, and lets go of its chain, unless
    /// another record has taken that over.
    fn mark_dead(self: &Arc<Self>, record: &Record<'_>, keep_chain: bool) {
        if let (Some(chain), false) = (record.chain(), keep_chain) {
            let segments = self.chain_segments_of(record);
            strict_assert!(self.chain_segments(chain.first).count() == segments, "none is lost");
            self.take_chain_off(record.segment(), segments);
            self.retire(chain.first, segments);
        }
        let (dead, before) = record.mark_dead();
        let entry = record.entry();
        if !entry.is(SegmentState::Sealed) {
            return;
        }
        let written = entry.written().load(Ordering::Relaxed);
        if self.dead_level(dead, written) != self.dead_level(before, written) {
            let mut alloc = self.alloc();
            // As it is by now: others may have been here first.
            let dead = entry.dead().load(Ordering::Relaxed);
            alloc.set_dead_level(record.segment(), self.dead_level(dead, written));
        }
    }

    /// The chain of an item in `segment` has moved or gone.
    fn take_chain_off(&self, segment: u32, segments: usize) {
        let segments = u32::try_from(segments).expect("segments are counted in 32 bits");
        self.alloc().queues.remove_chain(segment, segments);
    }

    /// A segment that was emptied: free when the epoch and the last lease have passed.
    fn retire_segment(&self, segment: u32) {
        let entry = self.table().entry(segment);
        strict_assert!(
            entry.dead().load(Ordering::Acquire) == entry.written().load(Ordering::Relaxed),
            "nothing in it lives"
        );
        entry.set_state(SegmentState::Retired);
        self.retire(segment, 1);
    }

    fn retire(&self, first: u32, segments: usize) {
        let mut alloc = self.alloc();
        let epoch = self.epoch.advance();
        alloc.retire(Retired { epoch, first, segments });
    }

    /// No reader can find it any more, but leases may hold it as long as they like.
    fn release(&self, first: u32) {
        let leases = self.table().entry(first).leases().fetch_or(RETIRED, Ordering::AcqRel);
        if leases == 0 {
            self.recycle(first);
        }
    }

    /// Makes a segment, or the chain that begins there, free again.
    fn recycle(&self, first: u32) {
        let segments: Vec<u32> = self.chain_segments(first).collect();
        self.free(&segments);
    }

    /// Makes segments free again that nobody refers to.
    fn free(&self, segments: &[u32]) {
        for &segment in segments {
            self.table().entry(segment).set_state(SegmentState::Free);
        }
        self.alloc().give_back(segments);
    }

    /// The segments of a chain, in order.
    fn chain_segments(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&segment| {
            self.table().entry(segment).next().load(Ordering::Relaxed).checked_sub(1)
        })
    }

    /// Counts `segments` as leased; false if that is now more than half of all.
    fn charge_lease(&self, segments: usize) -> bool {
        let leased = self.leased.fetch_add(segments, Ordering::Relaxed) + segments;
        leased <= self.limit_segments() / 2
    }

    /// What leases and uploads keep beyond the shares from which slow peers are closed. What is left
    /// up to their limits (half, and `room::UPLOAD_SHARE`) is for peers that do read and send.
    fn overheld(&self) -> Overheld {
        let (limit, uploading) = (self.limit_segments(), self.alloc().uploading);
        let over = |held: usize, max: usize| held.saturating_sub(max) * self.segment_len();
        Overheld {
            leased: over(self.leased.load(Ordering::Relaxed), limit * 3 / 8),
            uploaded: over(uploading, limit / 2),
            uploaded_by_any: over(uploading, limit * 9 / 16),
        }
    }

    fn unlease(&self, segments: usize) {
        self.leased.fetch_sub(segments, Ordering::Relaxed);
    }

    fn reset_counters(&self) {
        self.members().iter().for_each(|member| member.stats.reset());
        self.departed.reset();
        self.mrc.reset();
    }

    fn gauges(&self) -> Gauges {
        let layout = &self.table().layout;
        let slots = self.index.len() * index::BUCKET_SLOTS;
        let gauges = {
            let members = self.members();
            let present = members.iter().map(|member| &member.stats);
            HandleStats::total(self.config.classes.count(), present.chain([&self.departed]))
        };
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

#[cfg(all(test, shuttle))]
mod models;

#[cfg(all(test, loom))]
mod loom_models;
