//! Administrative commands, with which operators control the server.

/// An administrative command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// `lru_crawler enable`, `disable`.
    Crawler {
        /// Whether to enable the crawler.
        enable: bool,
    },
    /// `lru_crawler crawl`: starts a search for expired items.
    Crawl(Selection),
    /// `lru_crawler metadump`: lists the selected items with their metadata.
    Metadump(Selection),
    /// `lru_crawler mgdump`: lists the selected items as `mg` requests.
    Mgdump(Selection),
    /// `cache_memlimit`: the new memory limit in MiB.
    MemoryLimit(u32),
    /// `slabs reassign`. The parser does not check the classes.
    Reassign,
    /// Changes a setting of the crawler, the memory layout or the flash tier.
    Set(Tuning),
    /// `watch`: sends these log streams until the connection closes.
    Watch(Streams),
    /// `shutdown`.
    Shutdown(Shutdown),
    /// `refresh_certs`: reads the certificate files again.
    RefreshCerts,
    /// `config get cluster`: the servers of the cluster.
    Servers,
}

/// The mode of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Immediately.
    Quick,
    /// `shutdown graceful`: after answering the requests that have arrived.
    Graceful,
    /// An unknown mode.
    Invalid,
}

/// A setting that an operator can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// `lru_crawler sleep`: microseconds between the crawler's steps, at most 1,000,000.
    CrawlerSleep(u32),
    /// `lru_crawler tocrawl`: the maximum number of items to visit in a class; 0 visits all items.
    CrawlerToCrawl(u32),
    /// `lru tune`.
    Lru {
        /// Percent of memory for hot items.
        hot_pct: u32,
        /// Percent of memory for warm items; both percentages together are at most 80.
        warm_pct: u32,
        /// The maximum age of hot items, as a share of the age of the oldest cold item; above 0.
        hot_factor: Ratio,
        /// The maximum age of warm items, as a share of the age of the oldest cold item; above 0.
        warm_factor: Ratio,
    },
    /// `lru mode`: true for `segmented`, false for `flat`.
    LruSegmented(bool),
    /// `lru temp_ttl`, in seconds; `None` disables it.
    TemporaryTtl(Option<u32>),
    /// `slabs automove`: 0, 1 or 2.
    Automove(u32),
    /// `slabs automove ratio`.
    AutomoveRatio(Ratio),
    /// `slabs automove freeratio`.
    AutomoveFreeRatio(Ratio),
    /// `slabs automove window`: 3 to 1800 seconds.
    AutomoveWindow(u32),
    /// `extstore`: a setting of the flash tier.
    Flash(FlashTuning),
}

/// A setting of the flash tier that `extstore` can change. The names are memcached's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashTuning {
    /// The minimum size, in bytes, of an item to demote.
    ItemSize(u32),
    /// How many seconds an item must be idle before it is demoted. With `u32::MAX`, items are
    /// demoted only when they are evicted.
    ItemAge(u32),
    /// Items that expire in fewer seconds than this are written to separate pages, apart from other
    /// items. 0 disables this separation.
    LowTtl(u32),
    /// The server promotes one in this many items that are read from flash a second time. 0
    /// disables promotion.
    RecacheRate(u32),
    /// The number of free pages below which pages are rewritten.
    CompactUnder(u32),
    /// The number of free pages below which the oldest page is evicted.
    DropUnder(u32),
    /// The longest sleep of memcached's threads, in microseconds. The server only shows this
    /// setting.
    MaxSleep(u32),
    /// The share of used bytes below which a page is rewritten.
    MaxFrag(Ratio),
    /// Whether rewriting a page drops the items that were never read.
    DropUnread(bool),
    /// `free_memchunks`, which has no effect, as in memcached.
    FreeMemchunks,
}

/// A fraction, stored as the bits of an `f64`, so that settings can implement `Eq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(u64);

impl Ratio {
    /// Stores `number` unchanged.
    #[must_use]
    pub fn new(number: f64) -> Self {
        Self(number.to_bits())
    }

    /// Returns the number that [`Self::new`] received.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The items that a crawl or dump covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// `hash`: all items, in the order of the index.
    Hash,
    /// `all`, or a list of slab classes: bit n stands for class n, from 1 to 63.
    Classes(u64),
    /// A malformed list of classes.
    Invalid,
}

impl Selection {
    /// Returns whether items of this class, counted from 1, are selected.
    #[must_use]
    pub fn includes(self, class: usize) -> bool {
        match self {
            Self::Hash => true,
            Self::Classes(classes) => class < 64 && classes >> class & 1 == 1,
            Self::Invalid => false,
        }
    }
}

/// The largest number of a slab class.
pub const CLASS_MAX: u32 = 63;

/// A set of log streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams(pub u32);

#[expect(missing_docs, reason = "the names are memcached's own, from `watch`")]
impl Streams {
    pub const FETCHERS: Self = Self(1);
    pub const MUTATIONS: Self = Self(1 << 1);
    pub const EVICTIONS: Self = Self(1 << 2);
    pub const CONNEVENTS: Self = Self(1 << 3);
    pub const DELETIONS: Self = Self(1 << 4);
    pub const SYSEVENTS: Self = Self(1 << 5);
    pub const RAWCMDS: Self = Self(1 << 6);
    /// Request counts per key prefix (`stats detail`). This bit is not a log stream.
    pub const PREFIXES: Self = Self(1 << 31);

    pub(crate) const NAMES: [(&'static str, Self); 7] = [
        ("fetchers", Self::FETCHERS),
        ("mutations", Self::MUTATIONS),
        ("evictions", Self::EVICTIONS),
        ("connevents", Self::CONNEVENTS),
        ("deletions", Self::DELETIONS),
        ("sysevents", Self::SYSEVENTS),
        ("rawcmds", Self::RAWCMDS),
    ];

    /// Returns whether the sets have a common stream.
    #[must_use]
    #[inline]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
