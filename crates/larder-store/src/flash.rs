//! Settings and statistics of a cache's flash tier. The cache writes items that it evicts from
//! memory to a [`Device`], and reads them from there when a request needs them.

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
    /// The number of threads that read if the system has no io_uring (see `larder_device`).
    pub threads: usize,
    /// The maximum number of reads that one handle may have under way.
    pub depth: usize,
    /// The settings that can be changed at run time.
    pub settings: FlashSettings,
}

/// Which evicted items are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// All items.
    #[default]
    All,
    /// Items that were read, or that were stored again soon after an earlier eviction.
    Reused,
}

/// The settings that can be changed at run time. The names are those of memcached's options,
/// without `ext_`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashSettings {
    /// The minimum size of an item in bytes. Smaller ones are not written.
    pub item_size: usize,
    /// Items that were idle for this many seconds are demoted to flash before they would be
    /// evicted. `None`: they are demoted when they are evicted.
    pub item_age: Option<u32>,
    /// Items that expire within this many seconds are written to separate pages.
    pub low_ttl: u32,
    /// One in this many items that are read from flash a second time is copied to memory; 0: none.
    pub recache_rate: u32,
    /// With fewer free pages than this, mostly free pages are rewritten.
    pub compact_under: u32,
    /// With fewer free pages than this, the oldest page is dropped.
    pub drop_under: u32,
    /// Pages whose used share is below this are rewritten.
    pub max_frag: f64,
    /// Rewriting a page drops the items that were never read.
    pub drop_unread: bool,
    /// Which evicted items are written.
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
    /// Lookups that needed a read.
    pub get_extstore: u64,
    /// Reads whose result was not needed any more.
    pub get_aborted: u64,
    /// Reads that had to wait because there was no buffer.
    pub get_oom: u64,
    pub recache: u64,
    /// Items that were copied to memory and evicted again without a write.
    pub returned: u64,
    /// Reads that found no item: the device failed, or the bytes belong to another item.
    pub miss: u64,
    /// Reads of `miss` whose checksum was wrong.
    pub badcrc: u64,
    /// Items that were dropped because the write queue was full.
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
    /// Reads and writes under way.
    pub io_queue: u64,
    /// Failed reads and writes of the device.
    pub errors: u64,
    /// Whether the device is switched off after too many failures.
    pub is_off: bool,
}

/// A page, for `stats extstore`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashPage {
    /// A number that rises with each use of the page; 0 if the page is free.
    pub version: u64,
    /// Bytes of the items that the index refers to.
    pub bytes: u64,
    /// The kind of its items: see [`FlashSettings::low_ttl`].
    pub bucket: u8,
}
