//! One thread's access to a cache: its state, and what it reads under its pin.

use super::batch_reads::BatchReads;
use crate::engine::Liveness;
use crate::segment::cache::member::{Member, Own, Writing};
use crate::segment::cache::shared::Shared;
use crate::segment::flash::pending_read::Reading;
use crate::segment::index::slot::Pattern;
use crate::segment::item::header::State;
use crate::segment::item::record::Record;
use crate::segment::large_value::builder::ValueBuilder;
use crate::segment::large_value::lease::ChainLease;
use crate::segment::memory::epoch::{Pin, Pinned};
use crate::segment::miss_ratio::curve::Sampler;
use crate::{Item, Now, Value};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// One thread's access to a [`crate::segment::Cache`]: its open segments, its counters, its epoch pin.
#[derive(Debug)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pin: Pin<Own>,
    pub(crate) member: Arc<Member>,
    pub(crate) now: Now,
    /// The state for writing, from the first write of a batch to its end; otherwise it is with the
    /// [`Member`].
    pub(crate) writing: Option<Box<Writing>>,
    /// How far the search for expired items is.
    pub(crate) crawl: Crawl,
    /// The value of [`Shared::limits`] when this handle last sealed its segments.
    pub(crate) limits: u32,
    /// A large value that is put together from pieces before it is stored.
    pub(crate) value_builder: Option<ValueBuilder>,
    /// The announced look-ups in their order, and the position of the next one.
    pub(crate) hints: Vec<Hint>,
    pub(crate) next_hint: usize,
    /// All look-ups of the batch were announced: the next announcement begins another batch.
    pub(crate) hinted: bool,
    pub(crate) sampler: Sampler,
    pub(crate) fetching: BatchReads,
    /// It is that of a thread of the flash tier.
    pub(crate) is_of_flash: bool,
}

/// What is known of an announced look-up. Buckets and word are offsets in the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub(crate) hash: u64,
    pub(crate) patterns: [Pattern; 2],
    pub(crate) buckets: [usize; 2],
    /// An index word with the key's tag.
    pub(crate) word: Option<NonZeroUsize>,
}

/// How far a handle's search for expired items is; see `reclaim::expiry`.
#[derive(Debug, Default)]
pub(crate) struct Crawl {
    /// The segment to look at next.
    pub(crate) segment: u32,
    /// The segment whose records are being read.
    pub(crate) walk: Option<SegmentWalk>,
    /// The count of requested searches (`Shared::crawls`) at the last look.
    pub(crate) begun: u32,
    /// Pauses are skipped in this round, because an operator has asked for it.
    pub(crate) at_once: bool,
}

/// How far the search is in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWalk {
    pub(crate) segment: u32,
    pub(crate) sequence: u64,
    /// The next record's offset in the region.
    pub(crate) at: usize,
    /// The earliest expiry among the items that have not expired.
    pub(crate) first_expiry: u32,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let member = shared.join();
        Self {
            shared,
            pin: Pin::new(Own(Arc::clone(&member))),
            member,
            now: Now::default(),
            writing: None,
            crawl: Crawl::default(),
            limits: 0,
            value_builder: None,
            hints: Vec::new(),
            next_hint: 0,
            hinted: false,
            sampler: Sampler::default(),
            fetching: BatchReads::default(),
            is_of_flash: false,
        }
    }

    /// Runs `f` under the pin of the batch, or outside a batch under a pin of its own.
    #[inline]
    pub(crate) fn pinned<R>(&mut self, f: impl FnOnce(&Arc<Shared>, Pinned<'_>, Now) -> R) -> R {
        let reading = self.pin.read(&self.shared.epoch);
        f(&self.shared, reading.witness(), self.now)
    }

    /// The same, with what was read from flash for this batch.
    #[inline]
    pub(crate) fn pinned_beside_reads<R>(
        &mut self,
        f: impl FnOnce(&Arc<Shared>, Pinned<'_>, Now, &[Arc<dyn Reading>]) -> R,
    ) -> R {
        let reading = self.pin.read(&self.shared.epoch);
        f(&self.shared, reading.witness(), self.now, &self.fetching.delivered)
    }
}

/// Whether an item that the index refers to can be shown.
#[inline]
pub(crate) fn liveness(shared: &Shared, record: &Record<'_>, now: Now) -> Liveness {
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
pub(crate) fn value<'p>(shared: &Arc<Shared>, record: &Record<'p>) -> Value<'p, ChainLease> {
    match record.chain() {
        None => Value::Whole(record.inline_value()),
        Some(chain) => Value::Large(ChainLease::new(shared, record, chain)),
    }
}

/// The item as the closures of callers see it.
#[inline]
pub(crate) fn lend<'p>(shared: &Arc<Shared>, record: &Record<'p>) -> Item<'p, ChainLease> {
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
        self.value_builder = None;
        self.abandon_walk();
        let mut writing = self.writing.take().unwrap_or_else(|| self.member.take_writing());
        if let Some(evacuation) = writing.evacuation.take() {
            self.shared.put_back(&evacuation);
        }
        self.shared.count_slots(&mut writing);
        writing.free.give_all(&self.shared.pool);
        self.shared.alloc().orphans.append(&mut writing.open);
        for open in writing.write_buffers.iter_mut().filter_map(Option::take) {
            self.shared.queue_write(&open);
        }
        // The device may write to buffers until their reads have ended.
        self.fetching = BatchReads::default();
        self.shared.depart(&self.member);
        if !self.is_of_flash {
            self.shared.stop_flash_if_last();
        }
    }
}
