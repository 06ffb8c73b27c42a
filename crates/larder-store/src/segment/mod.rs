//! The engine that Larder is for: one region, cut into segments.
//!
//! Items are appended to open segments, found through an index of 8-byte words, evicted by S3-FIFO
//! a segment at a time, and read without a lock. Nothing but offsets is stored in the region.
//!
//! A file imports only from its own row and from rows below it.
//!
//! | file | what it knows |
//! |---|---|
//! | `engine`, `walk` | the operations of [`crate::Engine`]; the walk over all items |
//! | `update`, `stage` | writing one item; putting a large value together for it |
//! | `room`, `grow`, `shrink` | free segments for a write, for the index, for a lower limit |
//! | `evacuate`, `expire` | emptying a segment; the search for expired items |
//! | `open`, `sample` | open segments; telling `mrc` which keys were used |
//! | `handle` | one thread's access to the cache, and reading under its pin |
//! | `staging`, `chain` | large values: before they are stored, and in segments of their own |
//! | `flush` | invalidating all items at once |
//! | `shared` | what all handles share |
//! | `member` | what the handles know of each other |
//! | `alloc` | free segments and the queues, in the order of [`crate::eviction`] |
//! | `evacuation`, `open_segment`, `crawl` | what is under way: a segment that is emptied or appended to, a search |
//! | `mrc`, `stack` | the hit ratio under other limits, from a sample of the keys |
//! | `record` | an item in its segment |
//! | `table` | what is known of each segment |
//! | `index` | which key is where |
//! | `raw` | the region's memory: unsafe access, and the invariants that it relies on |
//! | `cas` | CAS values |
//! | `layout`, `header_page` | the places of everything in the region; its first page |
//! | `epoch`, `stats` | when removed memory can be used again; counters |
//! | `slot`, `header`, `sync` | the packed words of index and item; atomics and locks |
//!
//! # Invariants
//! 1. The three sentences of `raw`.
//! 2. At most one index word refers to a live key, but for the moment of a move, when two equal words
//!    do. Index words change only under the lock of their stripe; readers only raise frequencies.
//! 3. A sealed segment is in exactly one queue or owned by exactly one handle.
//! 4. A segment is retired when no index word refers into it, and free one epoch and its last lease
//!    later; so is a chain.
//! 5. Lock order: growth, then a stripe, then the allocator. No two stripes at once. The list of
//!    members comes before what a member leaves idle, and that before the allocator; who holds the
//!    allocator takes no other lock.
//! 6. Whatever was stored before a flush is in segments whose sequence is below the floor, and
//!    nobody appends to these or copies out of these afterwards: the floor rises, and segments get
//!    their sequence, under the allocator's lock, and who writes looks at the floor after its segment
//!    was opened.

mod alloc;
mod cas;
mod chain;
mod config;
mod crawl;
mod engine;
mod epoch;
mod evacuate;
mod evacuation;
mod expire;
mod flush;
mod grow;
mod handle;
mod header;
mod header_page;
mod index;
mod layout;
mod member;
mod mrc;
mod open;
mod open_segment;
mod raw;
mod record;
mod room;
mod sample;
mod shared;
mod shrink;
mod slot;
mod stack;
mod stage;
mod staging;
mod stats;
mod sync;
mod table;
mod update;
mod walk;

pub use chain::{ChainLease, Upload};
pub use config::{Config, ConfigError};
pub use handle::Handle;
pub use mrc::MissRatioCurve;
pub use walk::Walk;

use crate::{EvictionObserver, Gauges, LimitRefused, Seconds};
use shared::Shared;
use std::sync::Arc;
use sync::Ordering;

/// A cache. Clones are the same cache.
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// Sets a cache up. Memory is reserved now, and taken from the system as it fills.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::growable(config, 0)
    }

    /// The same, with address space for a limit that [`Cache::set_limit`] may raise to
    /// `limit_bytes_max`, if the system gives so much.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn growable(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        Shared::new(config, limit_bytes_max).map(|shared| Self { shared: Arc::new(shared) })
    }

    /// Asks the system for huge pages, for all memory that is not in use yet: fewer misses of the
    /// processor's page tables, for memory that is taken in larger pieces.
    ///
    /// # Errors
    /// The system has none to give; all works without.
    pub fn use_huge_pages(&self) -> std::io::Result<()> {
        self.shared.table().region.use_huge_pages()
    }

    /// A way in for one thread, made on that thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.shared))
    }

    /// The cache's totals.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.shared.gauges()
    }

    /// What the hit ratio would be with less memory or more, going by a sample of what was looked up
    /// lately.
    #[must_use]
    pub fn miss_ratio_curve(&self) -> MissRatioCurve {
        self.shared.mrc.estimate()
    }

    /// Changes the memory limit. A higher one can be used at once; under a lower one items are
    /// evicted and memory is given back step by step, by [`crate::Engine::maintain`].
    ///
    /// # Errors
    /// [`LimitRefused`]: beyond what was reserved, or below what the index holds.
    pub fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.shared.set_limit(bytes)
    }

    /// How many flushes took effect, delayed ones too. Each is counted after it took effect.
    #[must_use]
    pub fn flush_generation(&self) -> u64 {
        self.shared.table().header_page().order.flush_generation.load(Ordering::Acquire)
    }

    /// When the pending flush is due, if one is pending.
    #[must_use]
    pub fn flush_pending(&self) -> Option<Seconds> {
        let at = self.shared.table().header_page().shared.flush_at.load(Ordering::Acquire);
        u32::try_from(at).ok().filter(|at| *at != 0).map(Seconds)
    }

    /// Has `observer` told of every eviction from now on. The first one stays. An observer that
    /// panics ends the process: the item is half gone.
    pub fn observe_evictions(&self, observer: EvictionObserver) {
        // Who comes second is told nothing.
        let _ = self.shared.observer.set(observer);
    }

    /// Zeroes counters, but not what is there.
    pub fn reset_counters(&self) {
        self.shared.reset_counters();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

#[cfg(all(test, shuttle))]
mod models;

#[cfg(all(test, loom))]
mod loom_models;
