//! The totals of a cache, for statistics.

/// A cache's totals, for `stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Items in memory and on flash, including expired and flushed items that the engine has not
    /// removed yet.
    pub items: u64,
    /// Bytes that memcached would count for the items in memory (see [`SizeClasses::footprint`]),
    /// plus the approximate length of the items on flash.
    pub bytes: u64,
    /// Items stored since the start, or since the last reset. As in memcached, changing an expiry
    /// does not count, and changing a number counts only if its length changes.
    pub items_total: u64,
    /// Live items that the engine dropped from memory to make room, since the start or the last
    /// reset. Items demoted to flash are not included.
    pub evictions: u64,
    /// One entry per size class, in the order of [`SizeClasses`]. Items on flash count for the
    /// first class.
    pub classes: Vec<ClassGauges>,
    /// Memory for index slots, in bytes.
    pub index_bytes: u64,
    /// log2 of the number of slots, rounded down.
    pub index_power: u32,
    /// Whether the index is growing now.
    pub index_growing: bool,
    /// Memory that the engine may use, in bytes.
    pub limit_bytes: u64,
    /// Memory that the engine uses, in bytes.
    pub used_bytes: u64,
    /// The part of `used_bytes` that removed items occupy until the engine reuses their memory.
    pub dead_bytes: u64,
    /// The part of `used_bytes` that the tag table occupies; 0 before the first tag.
    pub tags_bytes: u64,
    /// Tags that were dropped. The number includes tags that earlier processes dropped, and tags
    /// that made room for other tags.
    pub tags_dropped: u64,
    /// The part of `tags_dropped` that was dropped to make room for other tags.
    pub tags_displaced: u64,
    /// The number of seconds between the last access and the eviction of the most recently evicted
    /// item, whatever its class. 0 for `moka`, which records this number only for each class.
    pub evicted_time: u64,
}

/// The totals of a size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own, from `stats items`")]
pub struct ClassGauges {
    pub items: u64,
    pub bytes: u64,
    pub evicted: u64,
    pub evicted_nonzero: u64,
    pub evicted_unfetched: u64,
    pub evicted_active: u64,
    /// The number of seconds between the last access and the eviction of the class's most recently
    /// evicted item.
    pub evicted_time: u64,
    pub expired_unfetched: u64,
    pub reclaimed: u64,
    /// The part of `reclaimed` that a flush had invalidated.
    pub reclaimed_flushed: u64,
    /// The part of `reclaimed` that a dropped tag had invalidated.
    pub reclaimed_untagged: u64,
    pub crawler_reclaimed: u64,
    pub out_of_memory: u64,
}

/// The size classes of the statistics. The caller chooses their bounds (memcached's slab classes).
#[derive(Clone, Debug)]
pub struct SizeClasses {
    bounds: Vec<usize>,
    /// The bytes that an item counts for in addition to its key, value and client flags:
    /// memcached's header, terminator and CAS.
    overhead: usize,
    /// Entry `i` is the class of the footprints above `8 * (i - 1)` and up to `8 * i` bytes.
    table: Box<[u8]>,
}

impl SizeClasses {
    /// Creates 1 to 255 classes. `bounds` are the largest footprints of the classes, in ascending
    /// order. All bounds except the last one are multiples of 8. The last class also includes all
    /// larger items. Each item counts `overhead` bytes in addition to its key, value and client
    /// flags.
    ///
    /// # Panics
    /// There are 0 or more than 255 bounds, or they do not ascend.
    #[must_use]
    pub fn new(bounds: Vec<usize>, overhead: usize) -> Self {
        assert!(!bounds.is_empty() && bounds.len() < 256, "1 to 255 classes");
        assert!(bounds.is_sorted(), "ascending");
        let find =
            |size: usize| bounds.partition_point(|&bound| bound < size).min(bounds.len() - 1);
        let table = (0..Self::TABLE_LEN)
            .map(|i| u8::try_from(find(i * 8)).expect("fewer than 256 classes"))
            .collect();
        Self { bounds, overhead, table }
    }

    const TABLE_LEN: usize = 512;

    /// Returns the number of classes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bounds.len()
    }

    /// Returns the number of bytes that an item counts for in statistics. Client flags take 4 bytes
    /// unless they are 0, as in memcached.
    #[inline]
    #[must_use]
    pub fn footprint(&self, key_len: usize, value_len: usize, client_flags: u32) -> usize {
        self.overhead + key_len + value_len + if client_flags == 0 { 0 } else { 4 }
    }

    /// Returns the class of a footprint in bytes. Classes are numbered from 0.
    #[inline]
    #[must_use]
    pub fn class_of(&self, footprint: usize) -> usize {
        // All bounds but the last are multiples of 8, so rounding a footprint up to a multiple of 8
        // does not change its class.
        match self.table.get(footprint.div_ceil(8)) {
            Some(&class) => class.into(),
            None => self.bounds.partition_point(|&b| b < footprint).min(self.bounds.len() - 1),
        }
    }

    /// Returns the largest footprint of a class. The last class also includes larger footprints.
    #[must_use]
    pub fn bound(&self, class: usize) -> usize {
        self.bounds[class]
    }
}
