//! What callers set and see of a cache's flash tier: items that are evicted from memory are written to a
//! [`Device`], and read from there when they are asked for.

use larder_device::Device;
use std::sync::Arc;

/// How a cache uses flash.
#[derive(Clone, Debug)]
pub struct FlashConfig {
    /// Where items are written.
    pub device: Arc<dyn Device>,
    /// The length of a page in bytes: a power of two, which divides the length of the device. A page is
    /// written from front to back, and freed as a whole.
    pub page_len: u64,
    /// The number of threads that read where the system has no rings (see `larder_device`).
    pub threads: usize,
    /// Reads that one handle may have under way.
    pub depth: usize,
    /// What can be changed while the cache works.
    pub settings: FlashSettings,
}

/// Which of the evicted items are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// All of them.
    #[default]
    All,
    /// Those that were read, or that came back soon after an earlier eviction.
    Reused,
}

/// What can be changed while the cache works. The names are those of memcached's options, without `ext_`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashSettings {
    /// Items of fewer bytes are not written.
    pub item_size: usize,
    /// Items that were idle for so many seconds leave for flash before they are evicted. `None`: they leave when
    /// they are evicted.
    pub item_age: Option<u32>,
    /// Items that expire within so many seconds share pages.
    pub low_ttl: u32,
    /// One in so many items that are read from flash a second time is copied to memory; 0: none is.
    pub recache_rate: u32,
    /// With fewer free pages, those that are mostly free are rewritten.
    pub compact_under: u32,
    /// With fewer free pages, the oldest page is given up.
    pub drop_under: u32,
    /// Pages whose used share is below this are rewritten.
    pub max_frag: f64,
    /// Items that were never read are given up where a page is rewritten.
    pub drop_unread: bool,
    /// Which items are written.
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
    /// Look-ups that had to read.
    pub get_extstore: u64,
    /// Reads that nobody waited for any more.
    pub get_aborted: u64,
    /// Reads that had to wait because there was no buffer.
    pub get_oom: u64,
    pub recache: u64,
    /// Items that were copied to memory, and evicted again without a write.
    pub returned: u64,
    /// Reads that found nothing: the device failed, or the bytes were not the item's.
    pub miss: u64,
    /// Of these, those whose checksum was wrong.
    pub badcrc: u64,
    /// Items that were dropped because the queue of writes was full.
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
    /// Whether the device has failed so often that it is not used any more.
    pub is_off: bool,
}

/// A page, for `stats extstore`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashPage {
    /// A number that is higher for each later use; 0 if the page is free.
    pub version: u64,
    /// Bytes of items that are found in it.
    pub bytes: u64,
    /// The kind of its items: see [`FlashSettings::low_ttl`].
    pub bucket: u8,
}
