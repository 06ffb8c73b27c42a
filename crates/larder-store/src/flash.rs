//! Settings and statistics of a cache's flash tier. When the cache evicts an item from memory, it
//! can write the item to a [`Device`]. The cache reads the item from the device when a request
//! needs the item.

use larder_device::Device;
use std::sync::Arc;

/// The configuration of a flash tier.
#[derive(Clone, Debug)]
pub struct FlashConfig {
    /// The device that items are written to.
    pub device: Arc<dyn Device>,
    /// The length of a page in bytes: a power of two that divides the length of the device. A page
    /// is written from front to back, and freed as a whole.
    pub page_len: u64,
    /// The maximum number of threads that read for handles that do not use io_uring. A handle uses
    /// io_uring only if the system allows it and the caller has requested
    /// [`SlowStorage::reads_fd`]. At least 1 thread is used.
    ///
    /// [`SlowStorage::reads_fd`]: crate::SlowStorage::reads_fd
    pub threads: usize,
    /// The maximum number of reads that one handle may have under way. A value of 0 counts as 1.
    pub depth: usize,
    /// The settings that can be changed at run time.
    pub settings: FlashSettings,
}

/// Which evicted items are written to flash. Items smaller than [`FlashSettings::item_size`] are
/// never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// All items that are large enough, even if they were never read.
    #[default]
    All,
    /// Items that were read, or that were stored again soon after an earlier eviction.
    Reused,
}

/// The settings that can be changed at run time. Their names are memcached's names without `ext_`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashSettings {
    /// The minimum size of an item in bytes, key and header included. Smaller items are not
    /// written.
    pub item_size: usize,
    /// The idle time in seconds after which maintenance demotes an item to flash before its memory
    /// is needed. With `None`, items are demoted only when they would be evicted.
    pub item_age: Option<u32>,
    /// The remaining lifetime in seconds below which items are written to separate pages; 0
    /// disables the separate pages.
    pub low_ttl: u32,
    /// One in this many items that are read from flash a second time is copied to memory; 0
    /// disables these copies.
    pub recache_rate: u32,
    /// The number of free pages below which sparsely filled pages are rewritten: see
    /// [`FlashSettings::max_frag`].
    pub compact_under: u32,
    /// The number of free pages below which the oldest page is dropped if there is no page to
    /// rewrite. A value below 2 counts as 2. The maximum is a quarter of all pages, rounded up.
    pub drop_under: u32,
    /// A page is rewritten if its items have fewer bytes than this fraction of the mean over all
    /// full pages. If the mean exceeds half a page, half a page is used instead.
    pub max_frag: f64,
    /// Whether rewriting a page drops the items that were not read since they were written to
    /// flash.
    pub drop_unread: bool,
    /// Selects the evicted items to write, among the items that are large enough.
    pub admit: Admission,
}

impl Default for FlashSettings {
    fn default() -> Self {
        Self {
            item_size: 512,
            item_age: None,
            low_ttl: 0,
            recache_rate: 1,
            compact_under: 1,
            drop_under: 1,
            max_frag: 0.8,
            drop_unread: false,
            admit: Admission::All,
        }
    }
}

/// The totals of a flash tier. The names are memcached's, from `stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own")]
pub struct FlashGauges {
    /// Reads that were started for requests. Reads by walks are not included.
    pub get_extstore: u64,
    /// Reads that were aborted to free their memory or their page, or because they took too long. A
    /// read is never aborted while a batch uses its item.
    pub get_aborted: u64,
    /// Failed attempts to start a read for a request: too many reads were under way, or no buffer
    /// or memory was free. The number includes lookups of large items that were read without their
    /// value because memory was short.
    pub get_oom: u64,
    pub recache: u64,
    /// Items that were copied to memory and demoted again without a write.
    pub returned: u64,
    /// Items that were removed because their read failed: the device failed or took too long, or
    /// the checksum was wrong.
    pub miss: u64,
    /// Reads that the device completed but whose checksum was wrong.
    pub badcrc: u64,
    /// Items that were evicted although they qualified for flash, because there was no write buffer
    /// for them.
    pub dropped: u64,
    pub compact_lost: u64,
    pub compact_rescues: u64,
    pub compact_skipped: u64,
    pub page_allocs: u64,
    pub page_evictions: u64,
    pub page_reclaims: u64,
    pub page_count: u64,
    pub pages_free: u64,
    pub pages_used: u64,
    pub page_size: u64,
    pub objects_evicted: u64,
    pub objects_read: u64,
    pub objects_written: u64,
    pub objects_used: u64,
    pub bytes_evicted: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub bytes_used: u64,
    pub bytes_fragmented: u64,
    /// The part of `Gauges::bytes` for the items on flash. It may exceed the size of the pages,
    /// because lengths are rounded.
    pub bytes_counted: u64,
    /// Reads under way, and write buffers that are queued or being written.
    pub io_queue: u64,
    /// Device reads and writes that failed since the start. A read with a wrong checksum counts as
    /// failed.
    pub failures: u64,
    /// Whether the device is switched off after too many failures.
    pub is_off: bool,
}

/// A page, for `stats extstore`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashPage {
    /// A number that rises with each use of the page; 0 if the page is free.
    pub version: u64,
    /// The approximate total length in bytes of the page's items that the index refers to.
    pub bytes: u64,
    /// The page's bucket in memcached's numbering: 3 for items that expire soon (see
    /// [`FlashSettings::low_ttl`]), else 0.
    pub bucket: u8,
}
