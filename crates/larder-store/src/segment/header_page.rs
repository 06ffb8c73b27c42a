//! The first page of the region, which describes the region in words that a later process could read.
//!
//! ```text
//! byte    0  magic, layout version, segment length, segments, seed, settings   written once
//!       128  index length, flush floor, pending flush                          read by every request
//!       256  sequence, flush generation, ghost epoch                           written once a segment
//!       384  next CAS, CAS floor                                               written once a block
//! ```
//! Words that are written often are on other cache lines than those that every request reads.

use super::sync::{AtomicU64, Ordering};

/// The first word of every region.
const MAGIC: u64 = u64::from_le_bytes(*b"larder\0\0");
/// Changes with the meaning of any byte in the region.
const LAYOUT_VERSION: u64 = 1;
/// The bytes of the header page, whatever the length of the system's pages.
pub(super) const HEADER_PAGE_LEN: usize = 4096;

/// The header page. A new region is all zeroes.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(super) struct HeaderPage {
    identity: Identity,
    pub(super) shared: ReadByAll,
    pub(super) order: Order,
    pub(super) cas: CasWords,
}

const _: () = assert!(size_of::<HeaderPage>() <= HEADER_PAGE_LEN);

#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Identity {
    magic: AtomicU64,
    layout_version: AtomicU64,
    segment_len: AtomicU64,
    segments: AtomicU64,
    seed: AtomicU64,
    /// Bit 0: items have a CAS. From bit 8 on: log2 of the first number of buckets.
    settings: AtomicU64,
}

/// Words that every request reads and that are seldom written.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(super) struct ReadByAll {
    /// Buckets in use.
    pub(super) index_len: AtomicU64,
    /// Items in segments that were opened before this sequence number are flushed; 0: none are.
    pub(super) flush_floor: AtomicU64,
    /// When the pending flush is due, in seconds; 0 if none is pending.
    pub(super) flush_at: AtomicU64,
}

/// The order in which segments were opened and flushes took effect. It changes only under the
/// allocator's lock.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(super) struct Order {
    /// The sequence number of the next segment to be opened, from 1. 64 bits never wrap.
    pub(super) sequence: AtomicU64,
    /// Flushes that took effect.
    pub(super) flush_generation: AtomicU64,
    /// Which eighth of the ghosts' memory is written now.
    pub(super) ghost_epoch: AtomicU64,
}

/// The source of CAS values.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(super) struct CasWords {
    /// The first CAS that no handle has taken yet.
    pub(super) next: AtomicU64,
    /// Sets that replace an item without reading it draw a CAS above this. Nothing raises it while
    /// all items are in memory.
    pub(super) floor: AtomicU64,
}

/// The parameters of a new region, which are written once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) segment_len: usize,
    pub(super) segments: usize,
    pub(super) seed: u64,
    pub(super) cas: bool,
    pub(super) buckets_first: usize,
}

impl HeaderPage {
    /// Fills in the page of a new region.
    pub(super) fn begin(&self, made: Made) {
        let identity = &self.identity;
        let settings = u64::from(made.cas) | u64::from(made.buckets_first.ilog2()) << 8;
        for (word, value) in [
            (&identity.layout_version, LAYOUT_VERSION),
            (&identity.segment_len, made.segment_len as u64),
            (&identity.segments, made.segments as u64),
            (&identity.seed, made.seed),
            (&identity.settings, settings),
            (&self.shared.index_len, made.buckets_first as u64),
            (&self.order.sequence, 1),
            (&self.cas.next, 1),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        identity.magic.store(MAGIC, Ordering::Release);
    }
}
