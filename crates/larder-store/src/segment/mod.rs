//! The default engine: one region of memory, divided into segments.
//!
//! Items are appended to open segments, found through an index of 8-byte words, evicted by S3-FIFO
//! a segment at a time, and read without a lock. Nothing but offsets is stored in the region.
//!
//! A folder imports only from folders in rows below its own; its `mod.rs` lists its files, which do not import
//! each other in a circle either.
//!
//! | folder or file | subject |
//! |---|---|
//! | `engine`, `walk`, `tags` | the operations of [`crate::Engine`]; the walk over all items; tags |
//! | `update` | one update of one key |
//! | `reclaim` | emptying segments: eviction, cleaning, expired items, a lower limit |
//! | `flash_read`, `flash_write` | items read from flash; items written to flash, and pages emptied |
//! | `write` | records written to open segments, and room made for them |
//! | `handle` | the state of a handle: one thread's access to the cache |
//! | `large_value` | large values: uploads, leases, values that are put together |
//! | `restart` | a region that an earlier process has left, and images of it |
//! | `cache` | the state that all handles share, settings, counters, flushes |
//! | `flash` | the state of the flash tier: pages, format, reads and writes under way |
//! | `item` | an item in its segment: record, header, links |
//! | `memory` | the region: its layout, the segment table, the allocator, reuse of memory |
//! | `index` | which key is where |
//! | `miss_ratio` | the hit ratio under other limits, from a sample of the keys |
//! | `sync` | atomics and locks, which model checks replace |
//!
//! # Invariants
//! 1. The three rules of `memory::raw`.
//! 2. At most one index word refers to a live key, except during a move, when two equal words do.
//!    Index words change only under the lock of their stripe; readers only raise frequencies.
//! 3. A sealed segment is in exactly one queue or owned by exactly one handle.
//! 4. A segment is retired when no index word refers into it, and free one epoch and its last lease
//!    later; so is a chain. The place of a dead record in a segment that is not retired may be written
//!    to again one epoch later, by one record of the same length, which the segment's count of dead
//!    bytes decides.
//! 5. Lock order: growth, then a stripe, then the allocator, the list of walks or the pool of free
//!    blocks. No thread holds two stripes. The list of members is locked before the idle state of a
//!    member, and that before the allocator; a thread that holds the allocator, the list of walks or the
//!    pool takes no other lock.
//! 6. All items that were stored before a flush are in segments whose sequence is below the floor,
//!    and no thread appends to these or copies out of them afterwards: the floor rises, and segments
//!    get their sequence, under the allocator's lock, and a writer reads the floor after its segment
//!    was opened.

mod cache;
mod engine;
mod flash;
mod flash_read;
mod flash_write;
mod handle;
mod index;
mod item;
mod large_value;
mod memory;
mod miss_ratio;
mod reclaim;
mod restart;
mod sync;
mod tags;
mod update;
mod walk;
mod write;

pub use cache::config::{Config, ConfigError};
pub use handle::batch_reads::PendingRead;
pub use handle::state::Handle;
pub use large_value::lease::ChainLease;
pub use large_value::upload::Upload;
pub use miss_ratio::curve::MissRatioCurve;
pub use restart::image::is_image;
pub use restart::region_file::{Restart, Unusable};
pub use walk::Walk;

use crate::{
    EvictionObserver, FlashGauges, FlashPage, FlashSettings, Gauges, LimitRefused, Seconds,
};
use cache::shared::Shared;
use restart::{image, region_file};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use sync::Ordering;

/// A cache. Clones are the same cache.
///
/// ```
/// use larder_store::segment::{Cache, Config};
/// use larder_store::{
///     Access, Attributes, Batches, Change, HashedKey, Lookup, Lookups, NewCas, NewTags, NewValue, Seconds,
///     SizeClasses, Updates, Value,
/// };
///
/// let cache = Cache::new(Config {
///     limit_bytes: 8 << 20,
///     cas: true,
///     classes: SizeClasses::new(vec![1024, 1 << 20], 56),
///     seed: 42, // Draw it at random where clients choose the keys.
///     evict: true,
///     item_size_max: 1 << 20,
///     threads: 1,
///     size_exponent: larder_store::eviction::SIZE_EXPONENT,
///     flash: None,
/// })?;
/// let mut handle = cache.handle();
/// let bytes = b"greeting";
/// let key = HashedKey { bytes, hash: handle.hash(bytes) };
///
/// // A batch: reads in it need no synchronisation of their own.
/// handle.begin_batch(Seconds(1_000));
/// let stored = handle.update(key, &mut None, |found| {
///     let put = Change::Put {
///         attributes: Attributes::default(),
///         cas: NewCas::Fresh,
///         value: NewValue::Bytes(b"hello"),
///         fetched: false,
///         tags: NewTags::None,
///     };
///     // `add` in memcached's terms: an item that is there stays.
///     if let Lookup::Hit(_) = found { (Change::Keep, false) } else { (put, true) }
/// });
/// assert!(stored.is_ok_and(|updated| updated.result));
///
/// let value = handle.get(key, Access::Tracked, |item| match &item.value {
///     Value::Whole(bytes) => bytes.to_vec(),
///     Value::Large(_) => unreachable!("only long values are leased"),
/// });
/// assert_eq!(value, Lookup::Hit(b"hello".to_vec()));
/// handle.end_batch();
/// # Ok::<(), larder_store::segment::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// Sets a cache up. Address space is reserved now, and memory is taken as the cache fills.
    ///
    /// # Errors
    /// [`ConfigError`]: the limit is out of range, or the system refuses the memory.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::growable(config, 0)
    }

    /// Like [`Cache::new`], with address space for a limit that [`Cache::set_limit`] may raise to
    /// `limit_bytes_max`, if the system grants that much.
    ///
    /// # Errors
    /// [`ConfigError`], as for [`Cache::new`].
    pub fn growable(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        Shared::new(config, limit_bytes_max).map(|shared| Self { shared: Arc::new(shared) })
    }

    /// A cache whose memory is a file, best on tmpfs: a later process that opens the file has the items
    /// again, also if this one is killed. `file` is open for reading and writing, empty or as an earlier
    /// cache has left it; it is this process's alone. `boot` tells the starts of the machine apart.
    ///
    /// What an earlier cache was made for is kept: its segments' length, its hash function, and how far
    /// the limit can be raised. If what is there can't be used, it is given up, and the [`Restart`]
    /// says why.
    ///
    /// # Errors
    /// [`ConfigError`]: as for [`Cache::new`], or the file can't be mapped, or its file system has no
    /// room.
    pub fn in_file(
        config: Config,
        limit_bytes_max: usize,
        file: File,
        boot: u128,
    ) -> Result<(Self, Restart), ConfigError> {
        let (shared, restart) = region_file::open(config, limit_bytes_max, file, boot)?;
        Ok((Self { shared: Arc::new(shared) }, restart))
    }

    /// A cache of what an image contains (see [`Cache::write_image`]), and the image's note: in `file`, which
    /// is as for [`Cache::in_file`] and whose content is given up, or without one in memory that ends with
    /// the process.
    ///
    /// # Errors
    /// [`ConfigError`], as for [`Cache::in_file`]. Where the image can't be used, the result contains the
    /// reason.
    pub fn from_image(
        config: &Config,
        file: Option<&File>,
        boot: u128,
        image: &mut impl Read,
    ) -> Result<Result<(Self, u64), Unusable>, ConfigError> {
        let loaded = image::load(config, file, boot, image)?;
        Ok(loaded.map(|(shared, note)| (Self { shared: Arc::new(shared) }, note)))
    }

    /// Writes all items to an image, for a process that begins after the machine was started again. There
    /// must be no handles: `note` is a word for whoever reads the image.
    ///
    /// # Errors
    /// The writer's, or `ResourceBusy` while there are handles.
    pub fn write_image(&self, note: u64, to: &mut impl Write) -> io::Result<()> {
        if self.shared.handles.load(Ordering::Acquire) > 0 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.shared.write_image(note, to)
    }

    /// A word that the next process finds again, 0 at first: for example what it takes to continue a clock.
    #[must_use]
    pub fn note(&self) -> u64 {
        self.shared.table().header_page().uses.note.load(Ordering::Relaxed)
    }

    /// Changes the [`Cache::note`].
    pub fn set_note(&self, note: u64) {
        self.shared.table().header_page().uses.note.store(note, Ordering::Relaxed);
    }

    /// Says that this process has panicked soon after its start. After the second such process in succession
    /// the region is given up, because it may be what they have failed of.
    pub fn count_panic(&self) {
        self.shared.table().header_page().uses.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Says that this process has worked for a while; see [`Cache::count_panic`].
    pub fn reset_panics(&self) {
        self.shared.table().header_page().uses.panics.store(0, Ordering::Relaxed);
    }

    /// Has the system map all memory in use at once, after a restart. Otherwise each page is mapped when
    /// it is touched first, which takes a request about a microsecond.
    pub fn populate(&self) {
        self.shared.populate();
    }

    /// Asks the system for huge pages, for all memory that is not in use yet. There are fewer TLB
    /// misses with them, but memory is taken in larger pieces.
    ///
    /// # Errors
    /// The system has no huge pages. The cache works without them.
    pub fn use_huge_pages(&self) -> io::Result<()> {
        self.shared.table().region.use_huge_pages()
    }

    /// A handle for one thread, made on that thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Shared::start_flash(&self.shared);
        Handle::new(Arc::clone(&self.shared))
    }

    /// The totals of the flash tier, if there is one.
    #[must_use]
    pub fn flash_gauges(&self) -> Option<FlashGauges> {
        Some(self.shared.flash.as_ref()?.gauges(self.shared.table()))
    }

    /// The pages of the flash tier, in the order of their numbers.
    #[must_use]
    pub fn flash_pages(&self) -> Vec<FlashPage> {
        let flash = self.shared.flash.as_ref();
        flash.map_or_else(Vec::new, |flash| flash.pages(self.shared.table()))
    }

    /// The settings of the flash tier, if there is one.
    #[must_use]
    pub fn flash_settings(&self) -> Option<FlashSettings> {
        Some(self.shared.flash.as_ref()?.settings())
    }

    /// Changes the settings of the flash tier. It has no effect without one.
    pub fn set_flash_settings(&self, settings: FlashSettings) {
        if let Some(flash) = &self.shared.flash {
            flash.set_settings(settings);
        }
    }

    /// The cache's totals.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.shared.gauges()
    }

    /// An estimate of the hit ratio with less or more memory, from a sample of recent look-ups.
    #[must_use]
    pub fn miss_ratio_curve(&self) -> MissRatioCurve {
        self.shared.mrc.estimate()
    }

    /// Changes the memory limit. A higher one can be used at once; under a lower one items are
    /// evicted and memory is given back step by step, by [`crate::Engine::maintain`].
    ///
    /// # Errors
    /// [`LimitRefused`]: the limit is above what was reserved, or too low for the index.
    pub fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.shared.set_limit(bytes)
    }

    /// See [`crate::cache::CacheControl::set_cas_epoch`].
    pub fn set_cas_epoch(&self, epoch: u32) {
        self.shared.table().header_page().cas.set_epoch(epoch);
    }

    /// The number of flushes that took effect, delayed ones included. Each is counted after it took
    /// effect.
    #[must_use]
    pub fn flush_generation(&self) -> u64 {
        self.shared.flush_generation()
    }

    /// When the pending flush is due, if one is pending.
    #[must_use]
    pub fn flush_pending(&self) -> Option<Seconds> {
        let at = self.shared.table().header_page().shared.flush_at.load(Ordering::Acquire);
        u32::try_from(at).ok().filter(|at| *at != 0).map(Seconds)
    }

    /// Has `observer` called for every eviction from now on. Only the first observer counts. If it
    /// panics, the process is aborted, because the item is half removed.
    pub fn observe_evictions(&self, observer: EvictionObserver) {
        // An error says that there is an observer already.
        let _ = self.shared.observer.set(observer);
    }

    /// Zeroes the counters that `stats reset` zeroes: not the number and bytes of items.
    pub fn reset_counters(&self) {
        self.shared.reset_counters();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod crash_tests;

#[cfg(all(test, shuttle))]
mod models;

#[cfg(all(test, loom))]
mod loom_models;
