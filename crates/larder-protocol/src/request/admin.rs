//! The administrative commands, which operators send and which are not about single items.

/// An administrative command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// `lru_crawler enable`, `disable`.
    Crawler {
        /// Whether expired items are looked for from now on.
        enable: bool,
    },
    /// `lru_crawler crawl`: look for expired items now.
    Crawl(Selection),
    /// `lru_crawler metadump`: describe every item.
    Metadump(Selection),
    /// `lru_crawler mgdump`: a `mg` line for every item.
    Mgdump(Selection),
    /// `cache_memlimit`, in MiB.
    MemoryLimit(u32),
    /// `slabs reassign`: its classes were not looked at.
    Reassign,
    /// Something that is only remembered.
    Set(Tuning),
    /// `watch`: the log streams that follow, for as long as the connection lasts.
    Watch(Streams),
    /// `shutdown`.
    Shutdown(Shutdown),
    /// `refresh_certs`: read the certificates again.
    RefreshCerts,
    /// `config get cluster`: the servers of the cluster.
    Servers,
}

/// How a server is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// At once.
    Quick,
    /// `shutdown graceful`: after the requests that are there.
    Graceful,
    /// What was given is neither.
    Invalid,
}

/// A setting that an operator changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// `lru_crawler sleep`: microseconds between its steps, at most a second.
    CrawlerSleep(u32),
    /// `lru_crawler tocrawl`: items it looks at in a class; 0 is all.
    CrawlerToCrawl(u32),
    /// `lru tune`.
    Lru {
        /// Percent of memory for what is hot.
        hot_pct: u32,
        /// Percent of memory for what is warm; both together at most 80.
        warm_pct: u32,
        /// Share of the cold age from which hot items move on; above 0.
        hot_factor: Ratio,
        /// The same for warm items.
        warm_factor: Ratio,
    },
    /// `lru mode segmented`, `lru mode flat`.
    LruSegmented(bool),
    /// `lru temp_ttl`, in seconds; `None` switches it off.
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

/// A setting of the flash tier, as `extstore` changes it. The names are memcached's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashTuning {
    /// Items of fewer bytes are not written.
    ItemSize(u32),
    /// Items that were idle for so many seconds are written; the highest number: when they are evicted.
    ItemAge(u32),
    /// Items that expire within so many seconds share pages.
    LowTtl(u32),
    /// One in so many items that are read again is copied to memory.
    RecacheRate(u32),
    /// With fewer free pages, pages are rewritten.
    CompactUnder(u32),
    /// With fewer free pages, the oldest page is evicted.
    DropUnder(u32),
    /// Microseconds that memcached's threads sleep at most.
    MaxSleep(u32),
    /// Pages of whose bytes less than this share is used are rewritten.
    MaxFrag(Ratio),
    /// Items that were never read are not rewritten.
    DropUnread(bool),
    /// `free_memchunks`: it has no effect in memcached either.
    FreeMemchunks,
}

/// A fraction as an operator wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(u64);

impl Ratio {
    /// Keeps `number` as it is.
    #[must_use]
    pub fn new(number: f64) -> Self {
        Self(number.to_bits())
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The items that a crawl is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// `hash`: all of them, in the index's order.
    Hash,
    /// `all`, or a list of slab classes: bit n is class n, of 1 to 63.
    Classes(u64),
    /// What was given is no list of classes.
    Invalid,
}

impl Selection {
    /// Whether items of this class, counted from 1, are meant.
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
    /// Not a stream of the log: counts by prefix (`stats detail`).
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

    /// Whether any of `other`'s streams is in it.
    #[must_use]
    #[inline]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// All streams of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
