//! The state that all handles of a cache share.

use super::config::Config;
use super::counters::HandleStats;
use super::handle_shared::HandleShared;
use crate::eviction::{GhostEpoch, Ghosts};
use crate::segment::flash::tier::Flash;
use crate::segment::index::buckets::Index;

use crate::segment::index::word::{self, IndexWord};
use crate::segment::item::record::Record;
use crate::segment::item::witness::Witness;
use crate::segment::memory::allocator::Alloc;
use crate::segment::memory::cas::CasLimit;
use crate::segment::memory::epoch::Epoch;
use crate::segment::memory::free_lists::Pool;
use crate::segment::memory::handle_block::Block;
use crate::segment::memory::layout::{STRIPES_MAX, checksum};
use crate::segment::memory::table::Table;
use crate::segment::miss_ratio::curve::Mrc;
use crate::segment::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::{ChangeObserver, EvictionObserver, ItemChange, SizeClasses};
use rapidhash::v3::RapidSecrets;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};

/// The state that all handles share. Its alignment keeps the reference count of its `Arc`, which
/// changes often, on another cache line.
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) index: Index<Table>,
    pub(crate) alloc: Mutex<Alloc>,
    /// A handle holds this lock while it grows the index or makes the tag table.
    pub(crate) growth: Mutex<()>,
    pub(crate) handle_list: Mutex<Vec<Arc<HandleShared>>>,
    /// The counters of dropped handles.
    pub(crate) departed: HandleStats,
    pub(crate) epoch: Epoch,
    /// The number of handles.
    pub(crate) handles: AtomicUsize,
    /// While handles alternate (see `write::room`), only the holder of this lock empties segments.
    pub(crate) evacuating: Mutex<()>,
    /// The epoch of retired memory for which a write waited without success, because a reader did
    /// not end its batch; 0 if there is no such epoch.
    pub(crate) stalled_epoch: AtomicU64,
    pub(crate) secrets: RapidSecrets,
    pub(crate) config: Config,
    /// The current limit in bytes.
    pub(crate) limit_bytes: AtomicUsize,
    /// The current limit in segments.
    pub(crate) limit_segments: AtomicUsize,
    /// The number of lifetime classes, 1 to 8.
    pub(crate) lifetimes: AtomicU32,
    /// The number of segments that one handle may have open.
    pub(crate) open_budget: AtomicUsize,
    /// 1 while the number of untouched segments exceeds the reserve, so that free lists exist; 0
    /// otherwise.
    pub(crate) has_unused: AtomicU32,
    /// Free blocks that all handles may take.
    pub(crate) pool: Pool,
    /// The number of index words in use. Handles add their changes to it several words at a time.
    pub(crate) slots_used: AtomicUsize,
    /// The number of segments with leases. A segment with several leases counts once.
    pub(crate) leased: AtomicUsize,
    /// The function that is called for each item that is evicted from memory.
    pub(crate) observer: OnceLock<EvictionObserver>,
    /// The function that is called for each change of an item.
    pub(crate) change_observer: OnceLock<ChangeObserver>,
    /// The number of searches for invalid items that were requested: by a flush, or by
    /// [`crate::Engine::crawl_soon`].
    pub(crate) crawls: AtomicU32,
    /// The number of times that the limit has changed.
    pub(crate) limit_changes: AtomicU32,
    /// The sample of keys for the miss-ratio curve.
    pub(crate) mrc: Mrc,
    /// The range of CAS values that this cache may draw.
    pub(crate) cas_limit: CasLimit,
    /// The flash tier for evicted items; `None` without flash.
    pub(crate) flash: Option<Flash>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The minimum number of buckets per stripe when the index is created, unless it has only one
/// stripe. With fewer buckets, some stripes would fill up by chance long before the other stripes.
const STRIPE_BUCKETS: usize = 64;

/// Aborts the process if it is dropped, which happens only if a panic unwinds during a change.
/// `std::mem::forget` disarms it after the change.
pub(crate) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Returns the number of stripes for an index that starts with this many buckets.
pub(crate) fn stripes_for(buckets_first: usize) -> usize {
    (buckets_first / STRIPE_BUCKETS).clamp(1, STRIPES_MAX)
}

/// Returns the hash of a key.
#[inline]
pub(crate) fn hash_of(secrets: &RapidSecrets, key: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3_seeded(key, secrets)
}

/// Converts a number of segments to 32 bits, which are enough for any region.
pub(crate) fn narrow(segments: usize) -> u32 {
    u32::try_from(segments).expect("segments are counted in 32 bits")
}

/// Returns a hash that identifies size classes.
pub(crate) fn class_fingerprint(classes: &SizeClasses) -> u64 {
    let bounds = (0..classes.count()).map(|class| classes.bound(class) as u64);
    let words: Vec<u64> = bounds.chain([classes.footprint(0, 0, 0) as u64]).collect();
    checksum(&words)
}

impl Shared {
    /// Adds a new handle's shared part. The handle gets its own handle block if one is free.
    pub(crate) fn join(&self) -> Arc<HandleShared> {
        let (table, mut handle_list) = (self.table(), self.handle_list());
        let own = (0..table.layout.blocks - 1).find(|number| {
            let block = Block::new(table, *number);
            handle_list.iter().all(|handle_shared| handle_shared.block != block)
        });
        let number = own.unwrap_or(table.layout.blocks - 1);
        let block = Block::new(table, number);
        if block.is_shared() {
            table.header_page().uses.has_shared_block.store(1, Ordering::Relaxed);
        }
        let handle_shared = Arc::new(HandleShared::new(self.config.classes.count(), block));
        handle_list.push(Arc::clone(&handle_shared));
        self.handles.fetch_add(1, Ordering::Relaxed);
        table.header_page().uses.running.store(1, Ordering::Relaxed);
        handle_shared
    }

    pub(crate) fn table(&self) -> &Table {
        &self.index.buckets
    }

    pub(crate) fn segment_len(&self) -> usize {
        self.table().layout.segment_len
    }

    /// Counts a dropped item that could have been demoted to flash.
    pub(crate) fn count_dropped(&self) {
        if let Some(flash) = &self.flash {
            flash.counts.dropped.add(1);
        }
    }

    /// Counts an item on flash that was removed to make room.
    pub(crate) fn count_lost_on_flash(&self, word: IndexWord) {
        if let Some(flash) = &self.flash {
            flash.counts.objects_evicted.add(1);
            flash.counts.bytes_evicted.add(flash.format.counted_len(word) as u64);
        }
    }

    pub(crate) fn alloc(&self) -> MutexGuard<'_, Alloc> {
        // No code panics while it holds this lock, so the lock is never poisoned.
        self.alloc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle_list(&self) -> MutexGuard<'_, Vec<Arc<HandleShared>>> {
        self.handle_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the shared part of a dropped handle, and adds its counters to `departed`.
    pub(crate) fn depart(&self, handle_shared: &Arc<HandleShared>) {
        let mut handle_list = self.handle_list();
        handle_list.retain(|other| !Arc::ptr_eq(other, handle_shared));
        self.handles.fetch_sub(1, Ordering::Relaxed);
        if handle_list.is_empty() {
            // The last handle was dropped, so the next process finds no unfinished change.
            self.table().header_page().uses.running.store(0, Ordering::Release);
        }
        // The counters are added under the lock of the list, so that totals count them exactly
        // once.
        self.departed.absorb(&handle_shared.stats);
    }

    /// Returns the oldest epoch in which a handle may still be reading; see [`Epoch::oldest`].
    pub(crate) fn oldest_pin(&self) -> u64 {
        self.epoch.oldest(self.handle_list().iter().map(|handle_shared| &handle_shared.pin))
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        hash_of(&self.secrets, key)
    }

    #[inline]
    pub(crate) fn record<'p>(&'p self, word: IndexWord, witness: Witness<'p>) -> Record<'p> {
        let record = Record::at(self.table(), word.offset(), self.config.cas, witness);
        strict_assert!(
            word::hash_prefix(self.hash(record.key())) == word.hash_prefix(),
            "the index word and the item have the same key"
        );
        record
    }

    pub(crate) fn ghost_epoch(&self) -> GhostEpoch {
        let epoch = self.table().header_page().order.ghost_epoch.load(Ordering::Relaxed);
        GhostEpoch::from_index(u8::try_from(epoch).unwrap_or_default())
    }

    /// Returns a bucket's ghosts. The caller holds the lock of the bucket's stripe.
    pub(crate) fn ghosts(&self, words: [&AtomicU64; 2]) -> Ghosts {
        Ghosts(words.map(|word| word.load(Ordering::Relaxed)))
    }

    pub(crate) fn set_ghosts(&self, words: [&AtomicU64; 2], ghosts: Ghosts) {
        words.iter().zip(ghosts.0).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
    }

    /// Returns [`Shared::class_and_footprint`] of the item in a record.
    pub(crate) fn class_and_footprint_of(&self, record: &Record<'_>) -> (usize, usize) {
        self.class_and_footprint(record.key_len(), record.value_len(), record.client_flags())
    }

    /// Calls the observer of changes, if there is one.
    #[inline]
    pub(crate) fn report_change(&self, change: ItemChange<'_>) {
        if let Some(observer) = self.change_observer.get() {
            let abort_guard = AbortOnUnwind;
            observer(change);
            std::mem::forget(abort_guard);
        }
    }

    /// Returns an item's statistics class, and the number of bytes it adds to the statistics.
    pub(crate) fn class_and_footprint(
        &self,
        key_len: usize,
        value_len: usize,
        flags: u32,
    ) -> (usize, usize) {
        let footprint = self.config.classes.footprint(key_len, value_len, flags);
        (self.config.classes.class_of(footprint), footprint)
    }

    /// Calls `f` for each handle.
    pub(crate) fn for_each_handle(&self, mut f: impl FnMut(&HandleShared)) {
        self.handle_list().iter().for_each(|handle_shared| f(handle_shared));
    }
}
