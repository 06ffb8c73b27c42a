//! One thread's access to a cache: its state, and what it reads under its pin.

use super::chain::ChainLease;
use super::crawl::Crawl;
use super::epoch::{Pin, Pinned};
use super::flash::fetching::Fetching;
use super::flash::reading::Reading;
use super::header::State;
use super::member::{Member, Own, Writing};
use super::mrc::Sampler;
use super::record::Record;
use super::shared::Shared;
use super::slot::Pattern;
use super::staging::Staging;
use crate::engine::Liveness;
use crate::{Item, Now, Value};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// One thread's access to a [`super::Cache`]: its open segments, its counters, its epoch pin.
#[derive(Debug)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) pin: Pin<Own>,
    pub(super) member: Arc<Member>,
    pub(super) now: Now,
    /// The state for writing, from the first write of a batch to its end; otherwise it is with the
    /// [`Member`].
    pub(super) writing: Option<Box<Writing>>,
    /// How far the search for expired items is.
    pub(super) crawl: Crawl,
    /// The value of [`Shared::limits`] when this handle last sealed its segments.
    pub(super) limits: u32,
    /// A large value that is put together from pieces before it is stored.
    pub(super) staging: Option<Staging>,
    /// The announced look-ups in their order, and the position of the next one.
    pub(super) hints: Vec<Hint>,
    pub(super) next_hint: usize,
    /// All look-ups of the batch were announced: the next announcement begins another batch.
    pub(super) hinted: bool,
    pub(super) sampler: Sampler,
    pub(super) fetching: Fetching,
    /// It is that of a thread of the flash tier.
    pub(super) is_of_flash: bool,
}

/// What is known of an announced look-up. Buckets and word are offsets in the region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hint {
    pub(super) hash: u64,
    pub(super) patterns: [Pattern; 2],
    pub(super) buckets: [usize; 2],
    /// An index word with the key's tag.
    pub(super) word: Option<NonZeroUsize>,
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let member = shared.join();
        Self {
            shared,
            pin: Pin::new(Own(Arc::clone(&member))),
            member,
            now: Now::default(),
            writing: None,
            crawl: Crawl::default(),
            limits: 0,
            staging: None,
            hints: Vec::new(),
            next_hint: 0,
            hinted: false,
            sampler: Sampler::default(),
            fetching: Fetching::default(),
            is_of_flash: false,
        }
    }

    /// Runs `f` under the pin of the batch, or outside a batch under a pin of its own.
    #[inline]
    pub(super) fn pinned<R>(&mut self, f: impl FnOnce(&Arc<Shared>, Pinned<'_>, Now) -> R) -> R {
        let reading = self.pin.read(&self.shared.epoch);
        f(&self.shared, reading.witness(), self.now)
    }

    /// The same, with what was read from flash for this batch.
    #[inline]
    pub(super) fn pinned_beside_reads<R>(
        &mut self,
        f: impl FnOnce(&Arc<Shared>, Pinned<'_>, Now, &[Arc<dyn Reading>]) -> R,
    ) -> R {
        let reading = self.pin.read(&self.shared.epoch);
        f(&self.shared, reading.witness(), self.now, &self.fetching.delivered)
    }
}

/// Whether an item that the index refers to can be shown.
#[inline]
pub(super) fn liveness(shared: &Shared, record: &Record<'_>, now: Now) -> Liveness {
    if shared.is_flushed(record) {
        Liveness::Flushed
    } else if record.is_past(now) {
        Liveness::Expired
    } else if record.has_extension() && shared.has_dropped_tag(record) {
        Liveness::Flushed
    } else {
        Liveness::Live
    }
}

#[expect(clippy::inline_always, reason = "a call costs `get` 4 % of its instructions")]
#[inline(always)]
pub(super) fn value<'p>(shared: &Arc<Shared>, record: &Record<'p>) -> Value<'p, ChainLease> {
    match record.chain() {
        None => Value::Whole(record.inline_value()),
        Some(chain) => Value::Large(ChainLease::new(shared, record, chain)),
    }
}

/// The item as the closures of callers see it.
#[inline]
pub(super) fn lend<'p>(shared: &Arc<Shared>, record: &Record<'p>) -> Item<'p, ChainLease> {
    let value = value(shared, record);
    Item {
        attributes: record.attributes(),
        cas: record.cas(),
        fetched: record.header.has(State::Fetched),
        accessed: record.accessed(),
        value,
    }
}

impl Drop for Handle {
    /// Leaves open segments, counters and unfinished work to the other handles.
    fn drop(&mut self) {
        self.staging = None;
        self.abandon_walk();
        let mut writing = self.writing.take().unwrap_or_else(|| self.member.take_writing());
        if let Some(evacuation) = writing.evacuation.take() {
            self.shared.put_back(&evacuation);
        }
        self.shared.count_slots(&mut writing);
        writing.free.give_all(&self.shared.pool);
        self.shared.alloc().orphans.append(&mut writing.open);
        for open in writing.leaving.iter_mut().filter_map(Option::take) {
            self.shared.send_off(&open);
        }
        // The device may write to buffers until their reads have ended.
        self.fetching = Fetching::default();
        self.shared.depart(&self.member);
        if !self.is_of_flash {
            self.shared.stop_flash_if_last();
        }
    }
}
