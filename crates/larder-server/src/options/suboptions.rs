//! What the `-o` list, memcached's extended options, can set.

use super::flash::FlashOptions;
use larder_support::tls::Tls;
use std::path::PathBuf;

/// What the `-o` list sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Suboptions {
    /// Refuse connections above the limit rather than let them wait.
    pub maxconns_fast: bool,
    /// Close TCP connections that were idle for more than this, in seconds; 0 is never.
    pub idle_timeout: u32,
    /// The file to which all items are written at SIGUSR1, and from which they are read at the start.
    pub memory_image: Option<PathBuf>,
    /// Files or devices for items that are evicted from memory.
    pub flash: FlashOptions,
    /// Look for expired items in the background.
    pub lru_crawler: bool,
    /// RESP's `SELECT` takes numbers up to this; all databases are the same items.
    pub resp_db: u32,
    /// Count items by size for `stats sizes`.
    pub track_sizes: bool,
    /// Memory that all connections may hold together, in bytes; 0 is the share of `-m`.
    pub read_buf_mem_limit: usize,
    /// The buffer of log lines for a slow watcher, in bytes.
    pub watcher_logbuf_size: usize,
    /// TLS.
    pub tls: Tls,
    /// Settings that `stats settings` shows and that have no other effect.
    pub shown: Shown,
    /// The suboptions that were given and have no effect: the name, and the reason.
    pub without_effect: Vec<(&'static str, &'static str)>,
}

/// Settings of memcached's mechanisms that Larder does not have, for `stats settings`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are memcached's own, from `stats settings`")]
pub struct Shown {
    pub lru_crawler_sleep: u32,
    pub lru_crawler_tocrawl: u32,
    pub hot_lru_pct: u32,
    pub warm_lru_pct: u32,
    pub hot_max_factor: f64,
    pub warm_max_factor: f64,
    pub slab_automove: u32,
    pub slab_automove_ratio: f64,
    pub slab_automove_freeratio: f64,
    pub slab_automove_window: u32,
}

impl Default for Suboptions {
    fn default() -> Self {
        Self {
            maxconns_fast: true,
            memory_image: None,
            flash: FlashOptions::default(),
            idle_timeout: 0,
            lru_crawler: true,
            resp_db: 0,
            track_sizes: false,
            read_buf_mem_limit: 0,
            watcher_logbuf_size: 256 * KIB,
            tls: Tls::default(),
            shown: Shown::default(),
            without_effect: Vec::new(),
        }
    }
}

impl Default for Shown {
    fn default() -> Self {
        Self {
            lru_crawler_sleep: 100,
            lru_crawler_tocrawl: 0,
            hot_lru_pct: 20,
            warm_lru_pct: 40,
            hot_max_factor: 0.2,
            warm_max_factor: 2.0,
            slab_automove: 0,
            slab_automove_ratio: 0.8,
            slab_automove_freeratio: 0.01,
            slab_automove_window: 10,
        }
    }
}

const KIB: usize = 1 << 10;
