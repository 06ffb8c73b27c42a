//! The values of the `-o` list: memcached's extended options and Larder's own.

use super::flash::FlashOptions;
use larder_support::tls::Tls;
use std::path::PathBuf;

/// The values of the `-o` list.
#[derive(Clone, Debug, PartialEq)]
pub struct Suboptions {
    /// Whether the server refuses connections beyond `-c`. Otherwise, these connections wait in the
    /// listen backlog.
    pub maxconns_fast: bool,
    /// The idle timeout of TCP connections, in seconds; 0: no timeout.
    pub idle_timeout: u32,
    /// The path of the image. A graceful shutdown writes all items to the image, and the next start
    /// reads the items from it.
    pub memory_image: Option<PathBuf>,
    /// The flash tier.
    pub flash: FlashOptions,
    /// Whether the server searches for expired items in the background.
    pub lru_crawler: bool,
    /// The highest database number that `SELECT` accepts in RESP. All databases share the same
    /// items.
    pub resp_db: u32,
    /// Whether `stats sizes` counts items.
    pub track_sizes: bool,
    /// The memory limit of all connections, in bytes. If it is 0 or above
    /// [`Memory::connections`](crate::memory::Memory::connections), the limit is
    /// `Memory::connections`.
    pub read_buf_mem_limit: usize,
    /// The maximum length of a watcher's log-line buffer, in bytes.
    pub watcher_logbuf_size: usize,
    /// TLS.
    pub tls: Tls,
    /// Settings that only appear in `stats settings`.
    pub shown: UnusedSettings,
    /// The names of the given suboptions that have no effect, each with the reason.
    pub without_effect: Vec<(&'static str, &'static str)>,
}

/// Settings for mechanisms of memcached that Larder lacks. Only `stats settings` shows them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are memcached's own, from `stats settings`")]
pub struct UnusedSettings {
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
            shown: UnusedSettings::default(),
            without_effect: Vec::new(),
        }
    }
}

impl Default for UnusedSettings {
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
