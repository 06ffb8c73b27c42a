//! What all handles of a cache share.

use super::config::{Config, ConfigError};
use super::counters::HandleStats;
use super::member::Member;
use crate::eviction::{GhostEpoch, Ghosts, Kind, Queue, SizeClass};
use crate::segment::flash::format::Format;
use crate::segment::flash::pages::Lists;
use crate::segment::flash::tier::Flash;
use crate::segment::index::buckets::{self, Index};
use crate::segment::index::slot::{self, Slot};
use crate::segment::item::record::{Chain, Record, Witness};
use crate::segment::memory::allocator::{Alloc, INDEX_SHARE_FLASH, Retired, dead_level};
use crate::segment::memory::epoch::Epoch;
use crate::segment::memory::free_lists::{Pool, age_max};
use crate::segment::memory::handle_block::Block;
use crate::segment::memory::header_page::Made;
use crate::segment::memory::layout::{Layout, STRIPES_MAX, Shape, checksum};
use crate::segment::memory::open_segment::{OPEN_SHARE_MAX, lifetime_count};
use crate::segment::memory::raw::Region;
use crate::segment::memory::raw::hardware::page_len;
use crate::segment::memory::read_buffers::{Buffers, segments_for};
use crate::segment::memory::table::{RETIRED, SegmentState, Table};
use crate::segment::miss_ratio::curve::Mrc;
use crate::segment::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::{
    ClassGauges, EvictionObserver, FlashConfig, Gauges, LimitRefused, Overheld, Seconds,
    SizeClasses,
};
use rapidhash::v3::RapidSecrets;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};

/// The state that all handles share. It is aligned so that the reference count of its `Arc`, which
/// changes often, is on another cache line.
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) index: Index<Table>,
    pub(crate) alloc: Mutex<Alloc>,
    /// Locked by the handle that grows the index.
    pub(crate) growth: Mutex<()>,
    pub(crate) members: Mutex<Vec<Arc<Member>>>,
    /// The counters of handles that were dropped.
    pub(crate) departed: HandleStats,
    pub(crate) epoch: Epoch,
    /// The number of handles.
    pub(crate) handles: AtomicUsize,
    /// Locked by the handle that empties segments while handles take turns (see `write::room`).
    pub(crate) evacuating: Mutex<()>,
    /// The epoch of retired memory that a write has waited for in vain, because a reader does not end
    /// its batch; 0 if there was none.
    pub(crate) stalled_epoch: AtomicU64,
    pub(crate) secrets: RapidSecrets,
    pub(crate) config: Config,
    /// The current limit in bytes.
    pub(crate) limit_bytes: AtomicUsize,
    /// The current limit in segments.
    pub(crate) limit_segments: AtomicUsize,
    /// The number of lifetime classes, 1 to 8.
    pub(crate) lifetimes: AtomicU32,
    /// Segments that one handle may have open.
    pub(crate) open_budget: AtomicUsize,
    /// 1 while some memory was never used and there are free lists; 0 afterwards.
    pub(crate) unused_left: AtomicU32,
    /// Free blocks that no handle keeps for itself.
    pub(crate) pool: Pool,
    /// Index words in use. Handles add to it in steps of several words.
    pub(crate) slots_used: AtomicUsize,
    /// Segments with leases, each counted once however many leases it has.
    pub(crate) leased: AtomicUsize,
    /// Called for each eviction.
    pub(crate) observer: OnceLock<EvictionObserver>,
    /// The number of [`crate::Engine::crawl_soon`] calls.
    pub(crate) crawls: AtomicU32,
    /// The number of changes of the limit.
    pub(crate) limits: AtomicU32,
    /// The sample of keys for the miss-ratio curve.
    pub(crate) mrc: Mrc,
    /// Where evicted items are written.
    pub(crate) flash: Option<Flash>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Buckets per stripe at first. With fewer, some stripes fill up long before the others by chance.
const STRIPE_BUCKETS: usize = 64;

/// Handles take turns if there are fewer segments than this for each of them.
const TIGHT_SHARE: usize = 8;

/// Aborts the process if it is dropped, which happens only while a panic unwinds in the middle of a
/// change. `std::mem::forget` disarms it after the change.
pub(crate) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// The number of stripes of an index with this first number of buckets.
pub(crate) fn stripes_for(buckets_first: usize) -> usize {
    (buckets_first / STRIPE_BUCKETS).clamp(1, STRIPES_MAX)
}

/// The hash of a key.
#[inline]
pub(crate) fn hash_of(secrets: &RapidSecrets, key: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3_seeded(key, secrets)
}

/// Segments are counted in 32 bits: no region has more.
pub(crate) fn narrow(segments: usize) -> u32 {
    u32::try_from(segments).expect("segments are counted in 32 bits")
}

/// What tells size classes from others.
pub(crate) fn class_fingerprint(classes: &SizeClasses) -> u64 {
    let bounds = (0..classes.count()).map(|class| classes.bound(class) as u64);
    let words: Vec<u64> = bounds.chain([classes.footprint(0, 0, 0) as u64]).collect();
    checksum(&words)
}

impl Shared {
    /// A cache in memory that ends with the process.
    pub(crate) fn new(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        let layout_for = |max| {
            let shape = config.shape(max)?;
            Ok::<_, ConfigError>((shape, Layout::new(shape, config.limit_bytes, page_len())))
        };
        let (shape, layout) = layout_for(limit_bytes_max)?;
        // A system that does not overcommit address space may still grant the first limit.
        let (shape, layout, region) = match Region::new(layout.region_len()) {
            Ok(region) => (shape, layout, region),
            Err(_) => {
                let (shape, layout) = layout_for(0)?;
                (shape, layout, Region::new(layout.region_len()).map_err(ConfigError::Map)?)
            }
        };
        Self::begin(config, Table::new(region, layout), shape, 0)
    }

    /// A cache in a region of zeroes.
    pub(crate) fn begin(
        config: Config,
        table: Table,
        shape: Shape,
        boot: u128,
    ) -> Result<Self, ConfigError> {
        let layout = table.layout;
        let (limit, segments) = (narrow(layout.segments_first), narrow(layout.segments));
        table.commit_bookkeeping(layout.segments_first).map_err(ConfigError::Map)?;
        let mut alloc = Alloc::new(limit, segments, config.size_exponent);
        let buckets =
            layout.buckets_per_segment() * layout.index_segments_first(config.flash.is_some());
        for bucket in (0..buckets).step_by(layout.buckets_per_segment()) {
            let wants = table.wants(bucket);
            let taken: Vec<u32> = std::iter::from_fn(|| alloc.take(0)).take(wants).collect();
            for segment in &taken {
                table.commit(*segment).map_err(ConfigError::Map)?;
            }
            table.extend(bucket, taken.into_iter());
            alloc.indexing += wants;
        }
        let page = table.header_page();
        page.begin(Made {
            segment_len: layout.segment_len,
            segments: layout.segments,
            seed: config.seed,
            cas: config.cas,
            buckets_first: buckets,
            blocks: shape.blocks,
            classes: shape.classes,
            boot,
            page_len: page_len(),
        });
        page.uses.classes.store(class_fingerprint(&config.classes), Ordering::Relaxed);
        page.complete();
        let index = Index::new(table, buckets, stripes_for(buckets));
        let flash = match &config.flash {
            Some(flash) => Some(Self::begin_flash(flash, &config, &index.buckets, &mut alloc)?),
            None => None,
        };
        Ok(Self::assemble(config, index, alloc, 0, flash))
    }

    /// An empty flash tier, whose table of pages is in segments.
    pub(crate) fn begin_flash(
        flash: &FlashConfig,
        config: &Config,
        table: &Table,
        alloc: &mut Alloc,
    ) -> Result<Flash, ConfigError> {
        // Whoever starts a cache draws the seed at random: no earlier content has this id.
        let id = u128::from(config.seed) << 64 | 1;
        let format = Format::new(flash, table.layout.segment_len, config.cas, id);
        let segments = table.segments_for_pages(format.pages);
        if segments * 4 > table.layout.segments_first {
            return Err(ConfigError::Pages {
                max: table.pages_within(table.layout.segments_first / 4),
            });
        }
        for part in 0..segments {
            let segment = alloc.take(0).ok_or(ConfigError::NoRoomForFlash)?;
            table.commit(segment).map_err(ConfigError::Map)?;
            table.extend_pages(part, segment);
        }
        let buffers = Self::begin_buffers(table, alloc)?;
        alloc.index_share_max = INDEX_SHARE_FLASH;
        table.header_page().flash.store(format.content());
        flash.device.begin(id).map_err(ConfigError::Flash)?;
        Ok(Flash::new(flash, format, Lists::new(narrow(format.pages)), buffers))
    }

    /// The segments for reads of items, and the one for blocks.
    pub(crate) fn begin_buffers(
        table: &Table,
        alloc: &mut Alloc,
    ) -> Result<(Buffers, u32), ConfigError> {
        let count = segments_for(&table.layout, table.layout.segments_first) + 1;
        let mut segments = Vec::new();
        for _ in 0..count {
            let segment = alloc.take(0).ok_or(ConfigError::NoRoomForFlash)?;
            table.commit(segment).map_err(ConfigError::Map)?;
            let kind = Kind { queue: Queue::Main, lifetime: 0, size: SizeClass::of(0) };
            table.entry(segment).open_for_buffers(kind, Seconds(0));
            segments.push(segment);
        }
        let last = segments.pop().expect("there is one for blocks");
        Ok((Buffers::new(segments.into_iter()), last))
    }

    /// A cache of its parts: the index over its region, and `items` items in it.
    pub(crate) fn assemble(
        config: Config,
        index: Index<Table>,
        alloc: Alloc,
        items: usize,
        flash: Option<Flash>,
    ) -> Self {
        let layout = index.buckets.layout;
        let untouched = alloc.untouched();
        let shared = Self {
            index,
            alloc: Mutex::new(alloc),
            growth: Mutex::new(()),
            members: Mutex::default(),
            departed: HandleStats::new(config.classes.count()),
            epoch: Epoch::new(),
            handles: AtomicUsize::new(0),
            evacuating: Mutex::new(()),
            stalled_epoch: AtomicU64::new(0),
            secrets: RapidSecrets::seed(config.seed),
            limit_bytes: AtomicUsize::new(config.limit_bytes),
            limit_segments: AtomicUsize::new(0),
            lifetimes: AtomicU32::new(1),
            open_budget: AtomicUsize::new(0),
            mrc: Mrc::new(config.limit_bytes),
            flash,
            unused_left: AtomicU32::new(1),
            pool: Pool::new(config.limit_bytes),
            config,
            slots_used: AtomicUsize::new(items),
            leased: AtomicUsize::new(0),
            observer: OnceLock::new(),
            crawls: AtomicU32::new(0),
            limits: AtomicU32::new(0),
        };
        shared.divide(layout.segments_first);
        shared.commit_reserve(&shared.alloc(), layout.segments_first);
        shared.note_unused(untouched > shared.reserve());
        shared
    }

    /// Sets what depends on the number of segments that there may be.
    pub(crate) fn divide(&self, segments: usize) {
        let threads = self.config.threads;
        self.limit_segments.store(segments, Ordering::Relaxed);
        let seen = &self.table().header_page().uses.segments_seen;
        seen.fetch_max(segments as u64, Ordering::Relaxed);
        self.lifetimes.store(lifetime_count(segments, threads), Ordering::Relaxed);
        let budget = crate::eviction::open_budget(segments, threads);
        self.open_budget.store(budget, Ordering::Relaxed);
    }

    /// Whether there are so few segments for each handle that handles take turns; see `write::room`.
    pub(crate) fn is_tight(&self) -> bool {
        self.handles.load(Ordering::Relaxed) * TIGHT_SHARE > self.limit_segments()
    }

    /// A new handle's member, with a block of its own if there is one.
    pub(crate) fn join(&self) -> Arc<Member> {
        let (table, mut members) = (self.table(), self.members());
        let own = (0..table.layout.blocks - 1).find(|number| {
            let block = Block::new(table, *number);
            members.iter().all(|member| member.block != block)
        });
        let number = own.unwrap_or(table.layout.blocks - 1);
        let block = Block::new(table, number);
        if block.is_shared() {
            table.header_page().uses.has_shared_block.store(1, Ordering::Relaxed);
        }
        let member = Arc::new(Member::new(self.config.classes.count(), block));
        members.push(Arc::clone(&member));
        self.handles.fetch_add(1, Ordering::Relaxed);
        table.header_page().uses.running.store(1, Ordering::Relaxed);
        member
    }

    pub(crate) fn table(&self) -> &Table {
        &self.index.buckets
    }

    pub(crate) fn segment_len(&self) -> usize {
        self.table().layout.segment_len
    }

    /// The current limit in segments.
    pub(crate) fn limit_segments(&self) -> usize {
        self.limit_segments.load(Ordering::Relaxed)
    }

    /// Counts an item that was dropped, though it could have left for flash.
    pub(crate) fn count_dropped(&self) {
        if let Some(flash) = &self.flash {
            flash.counts.dropped.add(1);
        }
    }

    /// Counts an item on flash that was removed to make room.
    pub(crate) fn count_lost_on_flash(&self, slot: Slot) {
        if let Some(flash) = &self.flash {
            flash.counts.objects_evicted.add(1);
            flash.counts.bytes_evicted.add(flash.format.counted_len(slot) as u64);
        }
    }

    /// Segments that may be open before a handle appends to an open segment of another.
    pub(crate) fn open_max(&self) -> usize {
        let budget = self.open_budget.load(Ordering::Relaxed) * self.config.threads.max(1);
        budget.min(self.limit_segments() / OPEN_SHARE_MAX)
    }

    /// Free segments that are kept for evacuations: ordinary writes leave them.
    pub(crate) fn reserve(&self) -> usize {
        self.reserve_of(self.limit_segments())
    }

    fn reserve_of(&self, segments: usize) -> usize {
        let each = 2 + 2 * self.config.threads;
        // Whatever is evicted to flash takes memory before it frees any.
        let wanted = if self.flash.is_some() { 2 * each } else { each };
        wanted.min(segments / 8)
    }

    /// Segments from this number on were never within the limit.
    pub(crate) fn segments_seen(&self) -> usize {
        let seen = &self.table().header_page().uses.segments_seen;
        usize::try_from(seen.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Takes a free segment if more than `reserve` are free.
    pub(crate) fn take(&self, reserve: usize) -> Option<u32> {
        let segment = self.alloc().take(reserve)?;
        self.commit(segment)
    }

    /// Takes a free segment that was never used, if there is one and more than `reserve` are free.
    pub(crate) fn take_fresh(&self, reserve: usize) -> Option<u32> {
        let segment = self.alloc().take_fresh(reserve)?;
        self.commit(segment)
    }

    /// Takes the memory of the free segments that are taken last, so that items can always be moved. The
    /// system may refuse it.
    fn commit_reserve(&self, alloc: &Alloc, segments: usize) {
        for segment in alloc.last_free(self.reserve_of(segments)) {
            if self.table().commit(segment).is_err() {
                break;
            }
        }
    }

    /// Takes the memory of a segment from the system. If that is refused, no more memory is used than
    /// until now: the limit is lowered.
    fn commit(&self, segment: u32) -> Option<u32> {
        if self.table().commit(segment).is_ok() {
            return Some(segment);
        }
        let mut alloc = self.alloc();
        let segments = alloc.refuse(segment, self.reserve());
        let bytes = self.table().layout.limit_for(segments);
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        self.divide(segments);
        self.limits.fetch_add(1, Ordering::Release);
        drop(alloc);
        self.mrc.set_limit(bytes);
        None
    }

    pub(crate) fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        let layout = &self.table().layout;
        let mut alloc = self.alloc();
        let min = layout.limit_for(alloc.limit_min());
        // A remainder in which no segment fits is accepted.
        let max = layout.limit_for(layout.segments + 1) - 1;
        if bytes > max || bytes < min {
            return Err(LimitRefused { min, max });
        }
        let segments = layout.segments_within(bytes);
        if self.table().commit_bookkeeping(segments).is_err() {
            return Err(LimitRefused { min, max: self.limit_bytes.load(Ordering::Relaxed) });
        }
        alloc.set_limit(segments);
        self.commit_reserve(&alloc, segments);
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        self.divide(segments);
        // Handles seal their open segments, which may be too many under the new limit.
        self.limits.fetch_add(1, Ordering::Release);
        drop(alloc);
        self.mrc.set_limit(bytes);
        Ok(())
    }

    pub(crate) fn alloc(&self) -> MutexGuard<'_, Alloc> {
        // No code panics while it holds the lock, so a poisoned lock still protects consistent data.
        self.alloc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle was dropped: its counters are kept.
    pub(crate) fn depart(&self, member: &Arc<Member>) {
        let mut members = self.members();
        members.retain(|other| !Arc::ptr_eq(other, member));
        self.handles.fetch_sub(1, Ordering::Relaxed);
        if members.is_empty() {
            // The next process finds nothing in the middle of a change.
            self.table().header_page().uses.running.store(0, Ordering::Release);
        }
        // Under the lock of the list, so that the counters are summed up once.
        self.departed.absorb(&member.stats);
    }

    /// The oldest epoch in which a handle may still be reading; see [`Epoch::oldest`].
    pub(crate) fn oldest_pin(&self) -> u64 {
        self.epoch.oldest(self.members().iter().map(|member| &member.pin))
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        hash_of(&self.secrets, key)
    }

    #[inline]
    pub(crate) fn record<'p>(&'p self, slot: Slot, witness: Witness<'p>) -> Record<'p> {
        let record = Record::at(self.table(), slot.offset(), self.config.cas, witness);
        strict_assert!(
            slot::tag(self.hash(record.key())) == slot.tag(),
            "index word and item are of one key"
        );
        record
    }

    pub(crate) fn ghost_epoch(&self) -> GhostEpoch {
        let epoch = self.table().header_page().order.ghost_epoch.load(Ordering::Relaxed);
        GhostEpoch::from_index(u8::try_from(epoch).unwrap_or_default())
    }

    /// The ghosts of a bucket. The caller holds the lock of its stripe.
    pub(crate) fn ghosts(&self, words: [&AtomicU64; 2]) -> Ghosts {
        Ghosts(words.map(|word| word.load(Ordering::Relaxed)))
    }

    pub(crate) fn set_ghosts(&self, words: [&AtomicU64; 2], ghosts: Ghosts) {
        words.iter().zip(ghosts.0).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
    }

    pub(crate) fn class_of(&self, record: &Record<'_>) -> (usize, usize) {
        self.class_of_parts(record.key_len(), record.value_len(), record.client_flags())
    }

    /// The statistics class of an item and the bytes that it counts for.
    pub(crate) fn class_of_parts(
        &self,
        key_len: usize,
        value_len: usize,
        flags: u32,
    ) -> (usize, usize) {
        let footprint = self.config.classes.footprint(key_len, value_len, flags);
        (self.config.classes.class_of(footprint), footprint)
    }

    /// Marks a record dead that no index word refers to any more, and retires its chain, unless
    /// another record has taken over the chain (`keep_chain`).
    #[inline]
    pub(crate) fn mark_dead(self: &Arc<Self>, record: &Record<'_>, keep_chain: bool) {
        if let (Some(chain), false) = (record.chain(), keep_chain) {
            self.retire_chain(record, chain);
        }
        self.mark_record_dead(record);
    }

    #[cold]
    fn retire_chain(&self, record: &Record<'_>, chain: Chain) {
        let segments = self.chain_segments_of(record);
        strict_assert!(self.chain_segments(chain.first).count() == segments, "none is lost");
        self.take_chain_off(record.segment(), segments);
        self.retire(chain.first, segments);
    }

    /// Marks a record dead that has no chain, or whose chain has another owner.
    #[inline]
    pub(crate) fn mark_record_dead(&self, record: &Record<'_>) {
        let (dead, before) = record.mark_dead();
        self.note_dead(record.segment(), dead, before);
    }

    /// Notes that the dead bytes of a segment have changed.
    #[inline]
    pub(crate) fn note_dead(&self, segment: u32, dead: u32, before: u32) {
        let entry = self.table().entry(segment);
        if !entry.is(SegmentState::Sealed) {
            return;
        }
        let written = entry.written().load(Ordering::Relaxed);
        let level = |dead| dead_level(self.table(), dead, written);
        if level(dead) != level(before) {
            self.change_dead_level(segment, written);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_dead_level(&self, segment: u32, written: u32) {
        let mut alloc = self.alloc();
        // Read under the lock: other threads may have set a later level.
        let dead = self.table().entry(segment).dead();
        alloc.set_dead_level(segment, dead_level(self.table(), dead, written));
    }

    /// Counts out the chain of an item in `segment`, which has moved or was retired.
    pub(crate) fn take_chain_off(&self, segment: u32, segments: usize) {
        let segments = u32::try_from(segments).expect("segments are counted in 32 bits");
        self.alloc().queues.remove_chain(segment, segments);
    }

    /// Retires a segment that was emptied. It is free when the epoch is over and the last lease was
    /// dropped.
    pub(crate) fn retire_segment(&self, segment: u32) {
        let entry = self.table().entry(segment);
        strict_assert!(
            entry.dead() == entry.written().load(Ordering::Relaxed),
            "no item in it is live"
        );
        entry.set_state(SegmentState::Retired);
        self.retire(segment, 1);
    }

    pub(crate) fn retire(&self, first: u32, segments: usize) {
        let mut alloc = self.alloc();
        let epoch = self.epoch.advance();
        alloc.retire(Retired { epoch, first, segments });
    }

    /// Recycles retired memory that no reader can find any more, or leaves that to its last lease.
    pub(crate) fn release(&self, first: u32) {
        let leases = self.table().entry(first).leases().fetch_or(RETIRED, Ordering::AcqRel);
        if leases == 0 {
            self.recycle(first);
        }
    }

    /// Makes a segment, or the chain that begins there, free again.
    pub(crate) fn recycle(&self, first: u32) {
        let segments: Vec<u32> = self.chain_segments(first).collect();
        self.free(&segments);
    }

    /// Makes segments free again that nothing refers to.
    pub(crate) fn free(&self, segments: &[u32]) {
        for &segment in segments {
            self.table().entry(segment).set_state(SegmentState::Free);
        }
        self.alloc().give_back(segments);
    }

    /// The segments of a chain, in order.
    pub(crate) fn chain_segments(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&segment| {
            self.table().entry(segment).next().load(Ordering::Relaxed).checked_sub(1)
        })
    }

    /// Counts `segments` as leased; false if more than half of all segments are leased now.
    pub(crate) fn charge_lease(&self, segments: usize) -> bool {
        let leased = self.leased.fetch_add(segments, Ordering::Relaxed) + segments;
        leased <= self.limit_segments() / 2
    }

    /// How much memory leases and uploads hold above the shares from which slow peers are
    /// disconnected. The rest up to their limits (half, and `large_value::chain::UPLOAD_SHARE`) is for peers that
    /// do read and send.
    pub(crate) fn overheld(&self) -> Overheld {
        let (limit, uploading) = (self.limit_segments(), self.alloc().uploading);
        let over = |held: usize, max: usize| held.saturating_sub(max) * self.segment_len();
        Overheld {
            leased: over(self.leased.load(Ordering::Relaxed), limit * 3 / 8),
            uploaded: over(uploading, limit / 2),
            uploaded_by_any: over(uploading, limit * 9 / 16),
        }
    }

    pub(crate) fn unlease(&self, segments: usize) {
        self.leased.fetch_sub(segments, Ordering::Relaxed);
    }

    pub(crate) fn reset_counters(&self) {
        self.members().iter().for_each(|member| member.stats.reset());
        self.departed.reset();
        self.mrc.reset();
        if let Some(flash) = &self.flash {
            flash.counts.reset();
        }
    }

    pub(crate) fn gauges(&self) -> Gauges {
        let (table, layout) = (self.table(), &self.table().layout);
        let slots = self.index.len() * buckets::BUCKET_SLOTS;
        let mut gauges = {
            let members = self.members();
            let present = members.iter().map(|member| &member.stats);
            HandleStats::total(self.config.classes.count(), present.chain([&self.departed]))
        };
        for block in (0..layout.blocks).map(|number| Block::new(table, number)) {
            for (i, class) in gauges.classes.iter_mut().enumerate() {
                let [items, bytes] = block.counts(table, i);
                class.items = class.items.wrapping_add(items);
                class.bytes = class.bytes.wrapping_add(bytes);
            }
        }
        let sum = |field: fn(&ClassGauges) -> u64| {
            gauges.classes.iter().map(field).fold(0, u64::wrapping_add)
        };
        let (items, bytes, evictions) = (sum(|c| c.items), sum(|c| c.bytes), sum(|c| c.evicted));
        let bytes = bytes.cast_signed().max(0).cast_unsigned();
        // After a repair an item may be counted in another class than its own: the sum of all is right nonetheless.
        let is_negative = |class: &ClassGauges| class.items.cast_signed() < 0;
        for class in gauges.classes.iter_mut().filter(|class| is_negative(class)) {
            (class.items, class.bytes) = (0, 0);
        }
        Gauges {
            items,
            bytes,
            evictions,
            index_bytes: (slots * size_of::<Slot>()) as u64,
            index_power: slots.ilog2(),
            index_growing: self.growth.try_lock().is_err(),
            limit_bytes: self.limit_bytes.load(Ordering::Relaxed) as u64,
            used_bytes: (self.alloc().used() * layout.segment_len) as u64,
            dead_bytes: table.dead_bytes(),
            tags_bytes: table.tags_len() as u64,
            tags_dropped: table.header_page().tags.drops.load(Ordering::Relaxed),
            tags_displaced: table.header_page().tags.displaced.load(Ordering::Relaxed),
            ..gauges
        }
    }

    /// Calls `f` for each handle that there is.
    pub(crate) fn for_each_member(&self, mut f: impl FnMut(&Member)) {
        self.members().iter().for_each(|member| f(member));
    }
}

impl Shared {
    /// Whether a segment is so old that its free blocks are not used any more.
    pub(crate) fn is_aged(&self, segment: u32, now: Seconds) -> bool {
        now.0.saturating_sub(self.table().entry(segment).base().0) >= age_max(segment)
    }

    /// Whether there are free lists: while some memory beside the reserve was never used.
    #[inline]
    pub(crate) fn has_free_lists(&self) -> bool {
        self.unused_left.load(Ordering::Relaxed) != 0
    }

    /// Notes whether some memory beside the reserve was never used.
    pub(crate) fn note_unused(&self, is_left: bool) {
        if self.has_free_lists() != is_left {
            self.unused_left.store(is_left.into(), Ordering::Relaxed);
            if !is_left {
                self.pool.clear();
            }
        }
    }
}
