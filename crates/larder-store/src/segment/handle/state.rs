//! The state of a handle, and reads under its pin.

use super::batch_reads::BatchReads;
use crate::engine::Liveness;
use crate::segment::cache::handle_shared::{HandleShared, PinOwner, WriteState};
use crate::segment::cache::shared::Shared;
use crate::segment::flash::pending_read::ItemRead;
use crate::segment::index::word::Pattern;
use crate::segment::item::header::State;
use crate::segment::item::record::Record;
use crate::segment::large_value::builder::ValueBuilder;
use crate::segment::large_value::lease::ChainLease;
use crate::segment::memory::epoch::{Pin, Pinned};
use crate::segment::miss_ratio::curve::Sampler;
use crate::{Item, Now, Value};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// One thread's access to a [`crate::segment::Cache`]: its open segments, counters and epoch pin.
#[derive(Debug)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pin: Pin<PinOwner>,
    pub(crate) handle_shared: Arc<HandleShared>,
    pub(crate) now: Now,
    /// The writing state during writes, at most from the first write of a batch to the batch's end;
    /// `None` while the [`HandleShared`] has it.
    pub(crate) writing: Option<Box<WriteState>>,
    /// The progress of the search for expired items.
    pub(crate) crawl: Crawl,
    /// The value of [`Shared::limit_changes`] when this handle last sealed its segments.
    pub(crate) limit_changes: u32,
    /// The large value that an update assembles from pieces, retained between the attempts of the
    /// update; `None` if no value is being assembled.
    pub(crate) value_builder: Option<ValueBuilder>,
    /// One hint per announced lookup, in announcement order.
    pub(crate) hints: Vec<Hint>,
    /// The position in `hints` of the next lookup's hint.
    pub(crate) next_hint: usize,
    /// Whether the items of all lookups in `hints` were prefetched. The next announced lookup then
    /// starts a new list.
    pub(crate) hinted: bool,
    pub(crate) sampler: Sampler,
    pub(crate) batch_reads: BatchReads,
    /// Whether the handle belongs to a thread of the flash tier.
    pub(crate) is_of_flash: bool,
    /// Whether an evacuation keeps an item in memory if the item's write to flash has to wait. If
    /// false, the evacuation evicts the item. True while the handle takes memory to read or copy an
    /// item from flash. Ignored while the device completes no writes.
    pub(crate) keeps_unwritten: bool,
}

/// The prefetch hint of an announced lookup. `buckets` and `slot` are offsets in the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub(crate) hash: u64,
    pub(crate) patterns: [Pattern; 2],
    pub(crate) buckets: [usize; 2],
    /// The offset of a slot whose word matches the key's pattern. `None` if no word matched, or if
    /// the items were not prefetched yet.
    pub(crate) slot: Option<NonZeroUsize>,
}

/// The progress of a handle's search for expired items; see `reclaim::expiry`.
#[derive(Debug, Default)]
pub(crate) struct Crawl {
    /// The next segment to search.
    pub(crate) segment: u32,
    /// The segment whose records are being read; `None` between two segments.
    pub(crate) walk: Option<SegmentWalk>,
    /// The count of requested searches (`Shared::crawls`) when the last search started.
    pub(crate) begun: u32,
    /// Whether this search skips the pauses, because a flush took effect or an operator requested a
    /// search.
    pub(crate) at_once: bool,
}

/// The progress of the search within a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWalk {
    pub(crate) segment: u32,
    pub(crate) sequence: u64,
    /// The offset of the next record in the region.
    pub(crate) at: usize,
    /// The earliest expiry among the items that have not expired; `u32::MAX` if none of them
    /// expires.
    pub(crate) first_expiry: u32,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let handle_shared = shared.join();
        Self {
            shared,
            pin: Pin::new(PinOwner(Arc::clone(&handle_shared))),
            handle_shared,
            now: Now::default(),
            writing: None,
            crawl: Crawl::default(),
            limit_changes: 0,
            value_builder: None,
            hints: Vec::new(),
            next_hint: 0,
            hinted: false,
            sampler: Sampler::default(),
            batch_reads: BatchReads::default(),
            is_of_flash: false,
            keeps_unwritten: false,
        }
    }

    /// Runs `f` under the pin of the batch, or outside a batch under a temporary pin.
    #[inline]
    pub(crate) fn pinned<R>(&mut self, f: impl FnOnce(&Arc<Shared>, Pinned<'_>, Now) -> R) -> R {
        let reading = self.pin.read(&self.shared.epoch);
        f(&self.shared, reading.witness(), self.now)
    }

    /// Runs `f` like [`Handle::pinned`], with the delivered reads of this batch.
    #[inline]
    pub(crate) fn pinned_with_reads<R>(
        &mut self,
        f: impl FnOnce(&Arc<Shared>, Pinned<'_>, Now, &[Arc<dyn ItemRead>]) -> R,
    ) -> R {
        let reading = self.pin.read(&self.shared.epoch);
        f(&self.shared, reading.witness(), self.now, &self.batch_reads.delivered)
    }
}

/// Returns the liveness of an item. For an item in a read buffer, does not check whether its page
/// on flash was flushed; see `flash_read::lookup::liveness_on_flash`.
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

/// Returns the item in the form that callers' closures receive.
#[inline]
pub(crate) fn lend<'p>(shared: &Arc<Shared>, record: &Record<'p>) -> Item<'p, ChainLease> {
    let value = value(shared, record);
    Item {
        attributes: record.attributes(),
        cas: record.cas(),
        fetched: record.header.has(State::Fetched),
        accessed: record.accessed(),
        flash_location: None,
        value,
    }
}

impl Drop for Handle {
    /// Gives open segments, counters and unfinished work to the other handles.
    fn drop(&mut self) {
        self.value_builder = None;
        self.abandon_walk();
        let mut writing = self.writing.take().unwrap_or_else(|| self.handle_shared.take_writing());
        if let Some(evacuation) = writing.evacuation.take() {
            self.shared.put_back(&evacuation);
        }
        self.shared.count_slots(&mut writing);
        writing.free.give_all(&self.shared.pool);
        self.shared.alloc().orphans.append(&mut writing.open);
        for open in writing.write_buffers.iter_mut().filter_map(Option::take) {
            self.shared.queue_write(&open);
        }
        // Waits for the reads to end, because the device may write to their buffers until then.
        self.batch_reads = BatchReads::default();
        self.shared.depart(&self.handle_shared);
        if !self.is_of_flash {
            self.shared.stop_flash_if_last();
        }
    }
}
