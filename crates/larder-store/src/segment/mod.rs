//! The default engine: one region of memory, divided into segments.
//!
//! Handles append items to open segments, or write items over dead records. An index of 8-byte
//! words contains the location of each item. Lookups read items without a lock. S3-FIFO evicts
//! items, one segment at a time. The region contains offsets, never pointers.
//!
//! The table lists the folders. A folder imports only from folders in rows below its own. The files
//! of a folder, which its `mod.rs` lists, do not import each other in a circle either.
//!
//! | folder or file | subject |
//! |---|---|
//! | `engine`, `background`, `walk`, `tags` | requests, maintenance, walks, tags |
//! | `update` | one update of one key |
//! | `reclaim` | emptying segments: eviction, cleaning, expired items, a lower limit |
//! | `flash_read`, `flash_write` | reads from flash; demotion to flash, and reclaiming its pages |
//! | `write` | writing records to open segments, and freeing memory for them |
//! | `handle` | the state of a handle: one thread's access to the cache |
//! | `large_value` | large values: uploads, leases, values that are assembled |
//! | `restart` | restoring the region of an earlier process, and images of a region |
//! | `cache` | the state that all handles share, settings, counters, flushes |
//! | `flash` | the state of the flash tier: pages, format, pending reads and writes |
//! | `item` | an item in its segment: record, header, links |
//! | `memory` | the region: its layout, the segment table, the allocator, reuse of memory |
//! | `index` | finds the location of an item by the hash of its key |
//! | `miss_ratio` | an estimate of the hit ratio under other limits, from a sample of the keys |
//! | `sync` | atomics and locks, which model checkers replace |
//!
//! # Invariants
//! 1. The three rules in the documentation of `memory::raw`.
//! 2. At most one index word refers to a live key, except during a move, when two words have the
//!    same location. Index words change only under the lock of their stripe, except for their
//!    frequencies, which readers raise without it.
//! 3. A sealed segment is in exactly one queue or owned by exactly one handle.
//! 4. A segment is retired when no index word refers into it. It is free once all readers of the
//!    epoch in which it was retired have finished and its last lease has ended. The same holds for
//!    a chain. In a segment that is not retired, one record of the same length may overwrite a dead
//!    record. Overwriting is allowed once all readers of the epoch in which the old record died
//!    have finished. A thread first subtracts the record's length from the segment's count of dead
//!    bytes, in one atomic step that fails if the segment is being emptied.
//! 5. Lock order: growth, then a stripe, then the allocator, the list of walks or the pool of free
//!    blocks. No thread locks two stripes at a time. The list of handles is locked before the idle
//!    state of a handle, and the idle state before the allocator. A thread that has locked the
//!    allocator, the list of walks or the pool takes no other lock.
//! 6. All items that were stored before a flush are in segments or pages whose sequence is below
//!    the floor. After the flush, no thread appends to these segments and pages or copies items out
//!    of them. To ensure this, the floor rises under the allocator's lock, and segments and pages
//!    get their sequence under the same lock. A writer reads the floor after it has opened its
//!    segment.

mod background;
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
pub use memory::header_page::IMAGE_PATH_LEN_MAX;
pub use miss_ratio::curve::MissRatioCurve;
pub use restart::image::{ImageOrigin, image_origin, is_image};
pub use restart::region_file::{ColdStartReason, Restart};
pub use walk::Walk;

use crate::{
    ChangeObserver, EvictionObserver, FlashGauges, FlashPage, FlashSettings, Gauges, LimitRefused,
    Seconds,
};
use cache::shared::Shared;
use restart::{image, region_file};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sync::Ordering;

/// A cache. Clones share the cache.
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
///     seed: 42, // Choose it at random if clients choose the keys.
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
/// // Reads within a batch need no further synchronisation.
/// handle.begin_batch(Seconds(1_000));
/// let stored = handle.update(key, &mut None, |found| {
///     let put = Change::Put {
///         attributes: Attributes::default(),
///         cas: NewCas::Fresh,
///         value: NewValue::Bytes(b"hello"),
///         fetched: false,
///         tags: NewTags::None,
///     };
///     // Like memcached's `add`: keep an item that exists.
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
    /// Creates a cache. Reserves its address space now. The memory is allocated as items are added.
    ///
    /// # Errors
    /// [`ConfigError`]: the limit is out of range or too low for the flash tier, the system refuses
    /// the memory, or the flash can't be written to.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::growable(config, 0)
    }

    /// Creates a cache like [`Cache::new`], and reserves address space for a limit of up to
    /// `limit_bytes_max`, which [`Cache::set_limit`] may set later. If the system refuses that much
    /// address space, reserves only enough for the initial limit.
    ///
    /// # Errors
    /// [`ConfigError`], as for [`Cache::new`].
    pub fn growable(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        Shared::new(config, limit_bytes_max).map(|shared| Self { shared: Arc::new(shared) })
    }

    /// Returns a cache whose memory is a mapped file, preferably on tmpfs. A later process that
    /// opens the file finds the same items, even if this process is killed. `file` must be open for
    /// reading and writing. It must be empty or contain the memory of an earlier cache. No other
    /// process may use it. `boot` identifies the machine's current boot.
    ///
    /// The file keeps the segment length, the hash seed and the maximum limit of the cache that
    /// created it. If the file contains the memory of a cache that can't be used, the new cache
    /// starts empty, and [`Restart`] contains the reason.
    ///
    /// # Errors
    /// [`ConfigError`]: as for [`Cache::new`], or the file contains other data, can't be mapped, or
    /// is on a full file system. Other data stay unchanged.
    pub fn in_file(
        config: Config,
        limit_bytes_max: usize,
        file: File,
        boot: u128,
    ) -> Result<(Self, Restart), ConfigError> {
        let (shared, restart) = region_file::open(config, limit_bytes_max, file, boot)?;
        Ok((Self { shared: Arc::new(shared) }, restart))
    }

    /// Returns a cache with the items of an image (see [`Cache::write_image`]), and the image's
    /// note. If there is a `file` (see [`Cache::in_file`]), it becomes the cache's memory, and the
    /// image replaces the file's content. Without a `file`, the memory ends with the process.
    ///
    /// # Errors
    /// [`ConfigError`]: as for [`Cache::in_file`], or `image` contains no image. If the image can't
    /// be used, the inner result contains the reason, and the `file` is empty afterwards.
    pub fn from_image(
        config: &Config,
        file: Option<&File>,
        boot: u128,
        image: &mut impl Read,
    ) -> Result<Result<(Self, u64), ColdStartReason>, ConfigError> {
        let loaded = image::load(config, file, boot, image)?;
        Ok(loaded.map(|(shared, note)| (Self { shared: Arc::new(shared) }, note)))
    }

    /// Writes an image of the cache's memory, for a process that starts after a reboot. The image
    /// does not contain the items on flash, only their locations on the device. There must be no
    /// handles. The image also contains `note`, for the process that reads it, and `boot`, which
    /// identifies the machine's current boot.
    ///
    /// # Errors
    /// An error of the writer or of the flash device, or `ResourceBusy` while there are handles.
    pub fn write_image(&self, note: u64, boot: u128, to: &mut impl Write) -> io::Result<()> {
        if self.shared.handles.load(Ordering::Acquire) > 0 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.shared.write_image(note, boot, to)
    }

    /// Returns the number that was stored with [`Cache::set_note`], or 0 if no number was stored. A
    /// later process with the same memory reads the same number. For example, the number can be an
    /// offset with which the next process continues a clock.
    #[must_use]
    pub fn note(&self) -> u64 {
        self.shared.table().header_page().uses.note.load(Ordering::Relaxed)
    }

    /// Changes the [`Cache::note`].
    pub fn set_note(&self, note: u64) {
        self.shared.table().header_page().uses.note.store(note, Ordering::Relaxed);
    }

    /// Returns the number that a process last stored with [`Cache::set_run`] in this memory, or 0
    /// if no number was stored. Images contain the number, too. If each process sets a higher
    /// number than all processes before it, the number shows whether a memory file or an image was
    /// used last.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.shared.table().header_page().uses.run.load(Ordering::Relaxed)
    }

    /// Changes the [`Cache::run`].
    pub fn set_run(&self, run: u64) {
        self.shared.table().header_page().uses.run.store(run, Ordering::Relaxed);
    }

    /// Returns the path that was stored with [`Cache::set_image_path`], or an empty path if no path
    /// was stored. A later process with the same memory gets the same path.
    #[must_use]
    pub fn image_path(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.shared.table().header_page().image.read()))
    }

    /// Stores the path of the image that this process has written. An empty path means that there
    /// is no image. If `path` is longer than [`IMAGE_PATH_LEN_MAX`], stores an empty path instead.
    pub fn set_image_path(&self, path: &Path) {
        self.shared.table().header_page().image.store(path.as_os_str().as_bytes());
    }

    /// Records that this process panicked soon after its start. After two such processes in
    /// succession, the next process discards the region, because the region may be the cause.
    pub fn count_panic(&self) {
        self.shared.table().header_page().uses.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that this process did not panic soon after its start; see [`Cache::count_panic`].
    pub fn reset_panics(&self) {
        self.shared.table().header_page().uses.panics.store(0, Ordering::Relaxed);
    }

    /// Makes the system map all used memory now, after a restart. Otherwise the system maps each
    /// page at its first access, which delays a request by about a microsecond. Has no effect on
    /// systems other than Linux.
    pub fn populate(&self) {
        self.shared.populate();
    }

    /// Requests huge pages from the system for all memory that is not mapped yet. Huge pages reduce
    /// TLB misses, but the cache then allocates memory in larger units.
    ///
    /// # Errors
    /// The system has no huge pages. The cache then uses pages of the usual size.
    pub fn use_huge_pages(&self) -> io::Result<()> {
        self.shared.table().region.use_huge_pages()
    }

    /// Creates a handle for the calling thread. Starts the flash tier's threads if they are not
    /// running.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Shared::start_flash(&self.shared);
        Handle::new(Arc::clone(&self.shared))
    }

    /// Returns the totals of the flash tier; `None` without a flash tier.
    #[must_use]
    pub fn flash_gauges(&self) -> Option<FlashGauges> {
        Some(self.shared.flash.as_ref()?.gauges(self.shared.table()))
    }

    /// Returns the pages of the flash tier, sorted by number. The list is empty without a flash
    /// tier.
    #[must_use]
    pub fn flash_pages(&self) -> Vec<FlashPage> {
        let flash = self.shared.flash.as_ref();
        flash.map_or_else(Vec::new, |flash| flash.pages(self.shared.table()))
    }

    /// Returns the settings of the flash tier; `None` without a flash tier.
    #[must_use]
    pub fn flash_settings(&self) -> Option<FlashSettings> {
        Some(self.shared.flash.as_ref()?.settings())
    }

    /// Changes the settings of the flash tier. Has no effect without a flash tier.
    pub fn set_flash_settings(&self, settings: FlashSettings) {
        if let Some(flash) = &self.shared.flash {
            flash.set_settings(settings);
        }
    }

    /// Returns the cache's totals.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.shared.gauges()
    }

    /// Estimates the hit ratio with less or more memory, from a sample of recent lookups.
    #[must_use]
    pub fn miss_ratio_curve(&self) -> MissRatioCurve {
        self.shared.mrc.estimate()
    }

    /// Changes the memory limit. A higher limit takes effect immediately. After the limit is
    /// lowered, [`crate::Maintenance::maintain`] evicts items and returns memory to the system step
    /// by step.
    ///
    /// # Errors
    /// [`LimitRefused`]: the limit is above the reserved size, or too low for the index or for the
    /// minimum number of segments; or the file system has no room for the bookkeeping of more
    /// segments.
    pub fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.shared.set_limit(bytes)
    }

    /// Does the same as [`crate::cache::CacheControl::next_cas`].
    #[must_use]
    pub fn next_cas(&self) -> u64 {
        self.shared.table().header_page().cas.next.load(Ordering::Relaxed)
    }

    /// Does the same as [`crate::cache::CacheControl::set_cas_range`].
    pub fn set_cas_range(&self, range: std::ops::Range<u64>) {
        let words = &self.shared.table().header_page().cas;
        self.shared.cas_limit.set(words, range.start, range.end);
    }

    /// Returns the number of flushes that took effect, delayed flushes included. The cache counts a
    /// flush after it took effect.
    #[must_use]
    pub fn flush_generation(&self) -> u64 {
        self.shared.flush_generation()
    }

    /// Returns the time at which the pending flush is due, or `None` if none is pending.
    #[must_use]
    pub fn flush_pending(&self) -> Option<Seconds> {
        let at = self.shared.table().header_page().shared.flush_at.load(Ordering::Acquire);
        u32::try_from(at).ok().filter(|at| *at != 0).map(Seconds)
    }

    /// Registers an observer: from now on, the cache calls it for every item that it evicts from
    /// memory. The cache also calls it for items that it writes to flash, but not for items that
    /// return to their copy on flash without a write, or that the flash tier drops. Only the first
    /// call has an effect. If the observer panics, the process aborts, because the item is only
    /// partly removed.
    pub fn observe_evictions(&self, observer: EvictionObserver) {
        // Has no effect if there is an observer already.
        let _ = self.shared.observer.set(observer);
    }

    /// Does the same as [`crate::cache::CacheControl::observe_changes`]. If the observer panics,
    /// the process aborts, because the change is not complete.
    pub fn observe_changes(&self, observer: ChangeObserver) {
        if self.shared.change_observer.set(observer).is_err() {
            return;
        }
        // Wait for updates that may have started before the observer was set: lock each stripe
        // once. An update reads the observer while it holds the lock of its stripe. So after this
        // loop, lookups see the changes of all updates that did not call the observer.
        let index = &self.shared.index;
        (0..index.stripes()).for_each(|stripe| drop(index.lock(stripe as u64)));
    }

    /// Zeroes the counters that `stats reset` zeroes. Totals such as the number of items stay.
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
