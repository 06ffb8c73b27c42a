//! The cache's record of each handle: the state that other handles read, and the writing state that
//! a handle leaves here between two batches. Other handles can use the writing state when memory is
//! short.

use super::counters::HandleStats;
use crate::eviction::{KeepLimit, Queue};
use crate::segment::flash::pages::BUCKETS;
use crate::segment::item::witness::OwnedSegment;
use crate::segment::memory::cas::CasBlock;
use crate::segment::memory::epoch::PinSlot;
use crate::segment::memory::free_lists::FreeLists;
use crate::segment::memory::handle_block::Block;
use crate::segment::memory::open_segment::Open;
use crate::segment::sync::Mutex;
use std::sync::{Arc, PoisonError};

/// The part of a handle that other handles can access.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct HandleShared {
    pub(crate) pin: PinSlot,
    pub(crate) stats: HandleStats,
    pub(crate) block: Block,
    idle: Mutex<Option<Box<WriteState>>>,
}

/// The writing state of a handle. The handle owns it during writes, at most from the first write of
/// a batch to the end of the batch. At other times it is in the [`HandleShared`], and other handles
/// may take parts of it.
#[derive(Debug, Default)]
pub(crate) struct WriteState {
    /// The open segments, at most one of each kind.
    pub(crate) open: Vec<Open>,
    /// The write buffers for items that are demoted to flash: one for each bucket of pages, and one
    /// for a large item. An entry is `None` while its buffer is not being filled.
    pub(crate) write_buffers: [Option<Open>; BUCKETS + 1],
    /// The segment that the handle is emptying; `None` if it is not emptying one.
    pub(crate) evacuation: Option<Evacuation>,
    keep_limit: Option<KeepLimit>,
    pub(crate) cas: CasBlock,
    pub(crate) free: FreeLists,
    /// The number of index words that this handle took minus the number that it cleared, since the
    /// last `Shared::count_slots`.
    pub(crate) slots: isize,
}

/// A segment that is being emptied.
#[derive(Debug)]
pub(crate) struct Evacuation {
    pub(crate) segment: OwnedSegment,
    /// The offset of the next record in the region.
    pub(crate) at: usize,
    /// The hash of the next record's key if its buckets were prefetched; otherwise `None`.
    pub(crate) hash: Option<u64>,
    pub(crate) end: usize,
    pub(crate) reason: EvacuationReason,
    /// The number of records that each write evacuates.
    pub(crate) rate: usize,
    /// The number of items that were evicted from the segment.
    pub(crate) evicted: u64,
    /// The number of the segment's items that were demoted to flash.
    pub(crate) demoted: usize,
}

/// The reason to empty a segment, which decides whether live items are moved, demoted or evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvacuationReason {
    /// Much of the segment is dead, or all its items have expired or were flushed. Live items are
    /// moved. If no segment is available for the moved items, they are evicted instead, unless
    /// retired memory will be free soon or the cache never evicts.
    Clean,
    /// The segment is the next victim of the eviction policy. The policy decides for each item
    /// whether it is moved. Items that are not moved are demoted to flash if possible, or evicted.
    Evict(Queue),
    /// The segment is older than this many seconds. Items that were idle for this time are demoted
    /// to flash if possible. All other items are moved.
    Age(u32),
}

impl WriteState {
    /// Returns the limit on the work of an eviction: the total length of items that the main queue
    /// may keep before it has to evict an item.
    pub(crate) fn keep_limit(&mut self, segment_len: usize) -> &mut KeepLimit {
        self.keep_limit.get_or_insert_with(|| KeepLimit::new(segment_len))
    }
}

impl HandleShared {
    pub(crate) fn new(classes: usize, block: Block) -> Self {
        let stats = HandleStats::new(classes);
        Self { pin: PinSlot::default(), stats, block, idle: Mutex::default() }
    }

    /// Takes the writing state, for the handle that owns it.
    pub(crate) fn take_writing(&self) -> Box<WriteState> {
        self.idle(|idle| idle.take()).unwrap_or_default()
    }

    /// Leaves the writing state here until the next write.
    pub(crate) fn leave_writing(&self, writing: Box<WriteState>) {
        self.idle(|idle| *idle = Some(writing));
    }

    /// Calls `f` with the writing state, on behalf of another handle. Returns `None` if the owner
    /// is using it or has not written yet.
    pub(crate) fn with_idle<R>(&self, f: impl FnOnce(&mut WriteState) -> R) -> Option<R> {
        self.idle(|idle| idle.as_deref_mut().map(f))
    }

    fn idle<R>(&self, f: impl FnOnce(&mut Option<Box<WriteState>>) -> R) -> R {
        // No code panics while it holds this lock, so the lock is never poisoned.
        f(&mut self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pin slot of a handle, for the handle that owns it.
#[derive(Debug)]
pub(crate) struct PinOwner(pub(crate) Arc<HandleShared>);

impl AsRef<PinSlot> for PinOwner {
    fn as_ref(&self) -> &PinSlot {
        &self.0.pin
    }
}
