//! The gateway's handle to the cache, and the operations on it.
//!
//! The handle belongs to the gateway's thread (`handle.rs`). An operation runs at the owner of its
//! item: on this server (`attempt.rs`), or on another one (`forwarding.rs`).

mod attempt;
mod forwarding;
mod handle;
mod items;
mod memory;
mod walk;

use crate::expiry::time_left;
use crate::items::StoredItem;
use crate::server_view::{Group, ServerView};
use bytes::Bytes;
pub(crate) use handle::drop_handle;
use handle::{WORKER, Worker, maintain_handle};
use larder_operations::{AnsweredCounts, CommandClass, Counters, ItemView, OpContext};
use larder_store::cache::Cache;
use larder_store::erased;
use larder_store::{Batches, Lease, Value};
use memory::{CountGuard, HELD_SHARE, pieces};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Semaphore;

/// The items of this server's cache and, through forwarded requests, of other servers.
pub(crate) struct CacheItems {
    cache: erased::Cache,
    view: Arc<dyn ServerView>,
    counters: Arc<Counters>,
    /// The number of operations in progress. While it is above 0, the thread keeps its handle.
    active: Arc<AtomicUsize>,
    /// The number of bytes in large values that are being sent to clients, and in long replies from
    /// other servers.
    leased: Arc<AtomicUsize>,
    /// The number of bytes in large values that are being received.
    uploading: Arc<AtomicUsize>,
    /// For each group, the semaphore that limits concurrent forwarded requests.
    forwarding: Mutex<BTreeMap<u16, Arc<Semaphore>>>,
}

impl CacheItems {
    pub(crate) fn new(
        cache: erased::Cache,
        view: Arc<dyn ServerView>,
        counters: Arc<Counters>,
    ) -> Self {
        let (active, leased, uploading, forwarding) = Default::default();
        Self { cache, view, counters, active, leased, uploading, forwarding }
    }

    /// Runs `work` with the handle of this thread. If the thread has no handle, creates one and
    /// starts its maintenance.
    fn with_engine<R>(&self, work: impl FnOnce(&mut erased::Handle) -> R) -> R {
        WORKER.with_borrow_mut(|slot| {
            if slot.is_none() {
                let active = Arc::clone(&self.active);
                tokio::spawn(maintain_handle(Arc::clone(&self.view), active));
            }
            let worker = slot.get_or_insert_with(|| Worker {
                engine: self.cache.engine(),
                used: Instant::now(),
            });
            worker.used = Instant::now();
            work(&mut worker.engine)
        })
    }

    /// Runs `work` as one batch of the engine.
    fn with_context<R>(&self, work: impl FnOnce(&mut OpContext<'_, erased::Handle>) -> R) -> R {
        self.with_engine(|engine| {
            let (view, now) = (&*self.view, self.view.now());
            engine.begin_batch(now);
            let mut cx = OpContext::new(engine, &self.counters, view.limits(), now);
            cx.observer = view.observer();
            let result = work(&mut cx);
            engine.end_batch();
            result
        })
    }

    /// Returns whether this server serves a request about `key`, or about all items of its group if
    /// `key` is `None`. Within a batch of the engine, the result stays valid until the end of the
    /// batch, because a replaced leader becomes a follower only after all batches have ended.
    /// Outside of a batch, the result can become outdated at any time, so check again within the
    /// batch that executes the request.
    fn is_local(&self, key: Option<&[u8]>, is_lookup: bool) -> bool {
        // Call `serves` before `group_of`. A leader reads the shard map before it starts to serve,
        // so if `serves` returns true, `group_of` uses this map.
        self.view.serves(is_lookup) && key.is_none_or(|key| self.view.group_of(key) == Group::OWN)
    }

    /// Records the time since `started` as the latency of a request of this class. Does nothing if
    /// `class` is `None`.
    fn record(&self, class: Option<CommandClass>, started: Instant) {
        if let Some(class) = class {
            let mut answered = AnsweredCounts::default();
            answered.add(class, 1);
            self.counters.latencies.record(&answered, started.elapsed());
        }
    }

    /// Adds `len` bytes of a large value to `count` until the guard is dropped. Returns `None` if
    /// the values in `count` would then exceed their share of the memory limit ([`HELD_SHARE`]). A
    /// single value is always allowed, even if it is larger than this share.
    fn hold(&self, count: &Arc<AtomicUsize>, len: usize) -> Option<CountGuard> {
        let max = self.view.memory_limit() / HELD_SHARE;
        let before = count.load(Ordering::Relaxed);
        let fits = before == 0 || (before + len) as u64 <= max;
        fits.then(|| CountGuard::new(count, len))
    }

    /// Converts an item for the handlers. Returns `None` if the item is large, and too many large
    /// values are being sent or are leased already.
    fn found(&self, item: &ItemView<'_, erased::Lease>) -> Option<StoredItem> {
        let value = match item.value {
            Value::Whole(bytes) => vec![Bytes::copy_from_slice(bytes)],
            Value::Large(lease) => {
                let held = self.hold(&self.leased, lease.len()).filter(|_| lease.may_be_kept())?;
                pieces(lease, &Arc::new(held))
            }
        };
        let ttl = time_left(item.expiry, self.view.now());
        Some(StoredItem { value, cas: item.cas, client_flags: item.attributes.client_flags, ttl })
    }
}
