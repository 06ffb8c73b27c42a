//! The engine over a concurrent map of another crate: everything except the map.
//!
//! A map runs a closure on one key while no other thread writes that key ([`Map::write`]). For an
//! update, the closure calls `Core::step`, which passes the existing item to the caller's closure
//! and returns the change that the map must make.
//!
//! | file | subject |
//! |---|---|
//! | `step` | one update of one key |
//! | `cas` | the source of CAS values |
//! | `hash` | the hash function of a cache |
//! | `record` | a stored item |
//! | `upload` | values that arrive in pieces; the memory budgets of uploads and items |
//! | `stats` | counts by size class |
//! | `sweep_schedule` | when to search for expired items |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]
#![cfg_attr(
    not(all(feature = "dashmap", feature = "moka")),
    allow(dead_code, reason = "each map uses only part of this module")
)]

mod cas;
mod hash;
mod record;
mod stats;
mod step;
mod sweep_schedule;
mod upload;

pub(crate) use hash::Hasher;
pub use record::{Record, SharedLease};
pub use step::{Core, Verdict};
pub(crate) use sweep_schedule::SweepSchedule;
pub(crate) use upload::Budget;
pub use upload::Upload;

use crate::cache::CacheControl;
use crate::engine::*;
use cas::CasCounter;
use record::LARGE_LEN_MIN;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use step::Step;

/// A map from an external crate, with the [`Core`] of its cache. The maps are `dashmap::Parts` and
/// `moka::Records`. Other crates can't implement this trait, because only this crate creates a
/// [`Core`].
pub trait Map: fmt::Debug + Send + Sync + Sized + 'static {
    /// The state of a walk over all items.
    type Walk: Send;

    /// Returns the cache's state other than the map.
    fn core(&self) -> &Core;

    /// Calls `read` with the record under `key`, if there is one.
    fn read<R>(&self, key: HashedKey<'_>, read: impl FnOnce(&Record) -> R) -> Option<R>;

    /// Calls `decide` with the record under `key`, if there is one, and applies the verdict. No
    /// other thread writes the key between the call and the change. Subtracts the records that
    /// leave the map from the counts of the [`Core`].
    fn write(&self, key: HashedKey<'_>, decide: impl FnOnce(Option<&Record>) -> Verdict);

    /// Searches for expired items for a short time, if a round is under way or due. Returns true if
    /// the round has not ended.
    fn sweep(&self, now: Seconds) -> bool;

    /// Requests a round, even if none is due yet.
    fn sweep_soon(&self);

    /// Starts a walk over all items.
    fn walk(self: &Arc<Self>) -> Self::Walk;

    /// Calls `visit` with the next item of a walk, unless the item was removed after the walk
    /// copied its key. Returns false at the end.
    fn continue_walk(&self, walk: &mut Self::Walk, visit: impl FnOnce(&[u8], &Record)) -> bool;

    /// Returns the memory limit in bytes.
    fn limit_bytes(&self) -> usize;

    /// Changes the memory limit, if the map supports that.
    ///
    /// # Errors
    /// [`LimitRefused`]: the limit is unchanged.
    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused>;

    /// Returns the number of slots in the map's table, and the length of a slot in bytes. `items`
    /// is the number of items in the map.
    fn slots(&self, items: u64) -> (u64, usize);
}

/// A cache over a map. Clones share the cache.
#[derive(Debug)]
pub struct Cache<M> {
    map: Arc<M>,
}

impl<M> Clone for Cache<M> {
    fn clone(&self) -> Self {
        Self { map: Arc::clone(&self.map) }
    }
}

impl<M: Map> Cache<M> {
    pub(crate) fn over(map: M) -> Self {
        Self { map: Arc::new(map) }
    }

    /// Makes a handle for one thread.
    #[must_use]
    pub fn handle(&self) -> Handle<M> {
        Handle { map: Arc::clone(&self.map), now: self.map.core().now().into() }
    }
}

impl<M: Map> crate::cache::Cache for Cache<M> {
    type Engine = Handle<M>;

    fn engine(&self) -> Handle<M> {
        self.handle()
    }

    fn control(&self) -> &dyn CacheControl {
        self
    }
}

impl<M: Map> CacheControl for Cache<M> {
    fn gauges(&self) -> Gauges {
        self.handle().gauges()
    }

    fn reset_counters(&self) {
        self.handle().reset_counters();
    }

    fn set_limit(&self, bytes: usize) -> Result<(), LimitRefused> {
        self.map.set_limit(bytes)
    }

    fn next_cas(&self) -> u64 {
        self.map.core().cas.as_ref().map_or(1, CasCounter::next)
    }

    fn set_cas_range(&self, range: Range<u64>) {
        if let Some(cas) = &self.map.core().cas {
            cas.set_range(range);
        }
    }

    fn observe_evictions(&self, observer: EvictionObserver) {
        self.map.core().observe_evictions(observer);
    }

    fn observe_changes(&self, observer: ChangeObserver) {
        self.map.core().observe_changes(observer);
    }
}

/// One thread's access to a [`Cache`].
#[derive(Debug)]
pub struct Handle<M> {
    map: Arc<M>,
    now: Now,
}

impl<M: Map> Batches for Handle<M> {
    fn begin_batch(&mut self, now: impl Into<Now>) {
        self.now = now.into();
        self.map.core().advance(self.now.secs);
    }

    fn end_batch(&mut self) {}
}

impl<M: Map> Lookups for Handle<M> {
    type Lease = SharedLease;

    fn hash(&self, key: &[u8]) -> u64 {
        self.map.core().hash(key)
    }

    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, SharedLease>) -> R,
    ) -> Lookup<R> {
        self.get_recorded(key, |item| (access, read(item)))
    }

    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, SharedLease>) -> (Access, R),
    ) -> Lookup<R> {
        let Self { map, now } = self;
        let lookup = map.read(key, |record| {
            map.core().liveness(record, *now).lookup(|| {
                let item = record.lend();
                let (access, result) = read(&item);
                if access == Access::Tracked {
                    record.note_access(now.secs);
                }
                result
            })
        });
        if matches!(lookup, Some(Lookup::Expired | Lookup::Flushed)) {
            self.remove_expired(key);
        }
        lookup.unwrap_or(Lookup::Miss)
    }
}

impl<M: Map> Uploads for Handle<M> {
    type Upload = Upload;

    fn upload_len_min(&self) -> usize {
        LARGE_LEN_MIN
    }

    fn upload(&mut self, len: usize) -> Result<Upload, Refusal> {
        Upload::new(&self.map.core().uploads, len)
    }

    fn extend(&mut self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal> {
        upload.extend(bytes)
    }

    fn memory_of(&self, upload: &Upload) -> usize {
        upload.charged()
    }

    fn uploaded<'u>(&self, upload: &'u Upload, offset: usize) -> &'u [u8] {
        upload.bytes().get(offset..).unwrap_or_default()
    }
}

impl<M: Map> Updates for Handle<M> {
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        decide: impl FnMut(Lookup<&Item<'_, SharedLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let Self { map, now } = self;
        let (mut result, mut is_change) = (None, false);
        map.write(key, |found| {
            let is_live = found.is_some_and(|record| map.core().liveness(record, *now).is_live());
            let Step { verdict, updated } = map.core().step(*now, key, found, upload, decide);
            is_change = match verdict {
                Verdict::Keep => false,
                Verdict::Remove => is_live,
                Verdict::Store(_) => true,
            };
            result = Some(updated);
            verdict
        });
        if is_change {
            map.core().report_change(ItemChange::Updated(key.bytes));
        }
        result.expect("a map calls the closure once for each write")
    }

    fn flush(&mut self, at: Option<Seconds>) {
        self.map.core().flush(at);
    }

    fn flush_generation(&self) -> u64 {
        self.map.core().flush_generation()
    }
}

impl<M: Map> SlowStorage for Handle<M> {
    type PendingRead = std::convert::Infallible;
}

impl<M: Map> Acknowledge for Handle<M> {
    type Position = std::convert::Infallible;
}

impl<M: Map> Walks for Handle<M> {
    type Walk = M::Walk;

    fn walk(&self) -> M::Walk {
        self.map.walk()
    }

    fn continue_walk(
        &mut self,
        walk: &mut M::Walk,
        items: usize,
        _waker: &Waker,
        mut visit: impl FnMut(&[u8], &Item<'_, SharedLease>),
    ) -> WalkState {
        let Self { map, now } = self;
        let mut show = |key: &[u8], record: &Record| {
            if map.core().liveness(record, *now).is_live() {
                visit(key, &record.lend());
            }
        };
        let has_more = (0..items).all(|_| map.continue_walk(walk, &mut show));
        if has_more { WalkState::More } else { WalkState::End }
    }
}

impl<M: Map> Maintenance for Handle<M> {
    fn maintain(&mut self, now: Seconds) -> bool {
        self.begin_batch(now);
        self.map.sweep(now)
    }

    fn crawl_soon(&mut self) {
        self.map.sweep_soon();
    }

    fn gauges(&self) -> Gauges {
        let gauges = self.map.core().gauges(self.map.limit_bytes());
        let (slots, slot_len) = self.map.slots(gauges.items);
        Gauges {
            index_bytes: slots * slot_len as u64,
            index_power: slots.checked_ilog2().unwrap_or(0),
            ..gauges
        }
    }

    fn reset_counters(&self) {
        self.map.core().stats.reset();
    }
}

impl<M: Map> Handle<M> {
    /// Removes the item under `key` if it has expired or was flushed. Another thread may have
    /// replaced the item since the caller found it.
    fn remove_expired(&self, key: HashedKey<'_>) {
        let core = self.map.core();
        let mut has_expired = false;
        self.map.write(key, |found| match found.map(|record| core.liveness(record, self.now)) {
            Some(Liveness::Live) | None => Verdict::Keep,
            Some(liveness) => {
                has_expired = liveness == Liveness::Expired;
                Verdict::Remove
            }
        });
        if has_expired {
            core.report_change(ItemChange::Expired(key.bytes));
        }
    }
}
