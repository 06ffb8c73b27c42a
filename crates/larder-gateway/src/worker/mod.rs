//! The gateway's handle to the cache, and how operations use it.
//!
//! The handle belongs to the gateway's thread (`handle.rs`). An operation is attempted where its item is:
//! on this server (`attempt.rs`), or on another one (`forwarding.rs`).

mod attempt;
mod forwarding;
mod handle;
mod items;
mod memory;
mod walk;

use crate::items::Found;
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

/// The items of a cache.
pub(crate) struct CacheItems {
    cache: erased::Cache,
    view: Arc<dyn ServerView>,
    counters: Arc<Counters>,
    /// The requests that are under way.
    active: Arc<AtomicUsize>,
    /// Bytes of large values that are being sent.
    leased: Arc<AtomicUsize>,
    /// Bytes of large values that are being received.
    uploading: Arc<AtomicUsize>,
    /// For each group how many requests more may be under way to it.
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

    /// Works with the handle of this thread, which is made if there is none.
    fn with_engine<R>(&self, work: impl FnOnce(&mut erased::Handle) -> R) -> R {
        WORKER.with_borrow_mut(|place| {
            if place.is_none() {
                let active = Arc::clone(&self.active);
                tokio::spawn(maintain_handle(Arc::clone(&self.view), active));
            }
            let worker = place.get_or_insert_with(|| Worker {
                engine: self.cache.engine(),
                used: Instant::now(),
            });
            worker.used = Instant::now();
            work(&mut worker.engine)
        })
    }

    /// Works within a batch of its own.
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

    /// Whether this server answers a request about the item of a key, or without one about all items of its group. It is
    /// to be asked within a batch: a leader that is replaced follows only when the batch has ended.
    fn is_local(&self, key: Option<&[u8]>, is_lookup: bool) -> bool {
        // In this order: who leads has read which group has which keys before it answers.
        self.view.serves(is_lookup) && key.is_none_or(|key| self.view.group_of(key) == Group::OWN)
    }

    /// Records how long a request has taken.
    fn record(&self, class: Option<CommandClass>, started: Instant) {
        if let Some(class) = class {
            let mut answered = AnsweredCounts::default();
            answered.add(class, 1);
            self.counters.latencies.record(&answered, started.elapsed());
        }
    }

    /// Counts memory that values hold on their way; `None` if others hold too much. One value may always be on
    /// its way, however small the memory.
    fn hold(&self, count: &Arc<AtomicUsize>, len: usize) -> Option<CountGuard> {
        let max = self.view.memory_limit() / HELD_SHARE;
        let before = count.load(Ordering::Relaxed);
        let fits = before == 0 || (before + len) as u64 <= max;
        fits.then(|| CountGuard::new(count, len))
    }

    /// An item as it is shown; `None` if too much is being sent already.
    fn found(&self, item: &ItemView<'_, erased::Lease>) -> Option<Found> {
        let value = match item.value {
            Value::Whole(bytes) => vec![Bytes::copy_from_slice(bytes)],
            Value::Large(lease) => {
                let held = self.hold(&self.leased, lease.len()).filter(|_| lease.may_be_kept())?;
                pieces(lease, &Arc::new(held))
            }
        };
        let ttl = item.expiry.left(self.view.now());
        Some(Found { value, cas: item.cas, client_flags: item.attributes.client_flags, ttl })
    }
}
