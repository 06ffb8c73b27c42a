//! Large values: whole segments of their own for the front, the rest inline in the item. An upload
//! fills them as the bytes arrive; a lease reads them for as long as it takes.

use super::record::{Chain, Record};
use super::shared::Shared;
use super::sync::Ordering;
use super::table::{LEASE_CHARGE, RETIRED, SegmentState};
use crate::{Lease, Refusal};
use std::cell::Cell;
use std::sync::Arc;

/// A value that arrives in pieces. Its segments belong to nobody else until it is stored; dropped
/// before, they are free again at once, for nobody has ever seen them.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<Shared>,
    pub(super) segments: Vec<u32>,
    /// The announced length.
    pub(super) len: usize,
    pub(super) filled: usize,
}

impl Upload {
    pub(super) fn new(shared: &Arc<Shared>, len: usize) -> Self {
        Self { shared: Arc::clone(shared), segments: Vec::new(), len, filled: 0 }
    }

    /// Refuses an upload of another cache: its segments mean nothing in this one.
    pub(super) fn check_owner(&self, shared: &Arc<Shared>) -> Result<(), Refusal> {
        if Arc::ptr_eq(&self.shared, shared) { Ok(()) } else { Err(Refusal::WrongUpload) }
    }

    /// Refuses an upload that can't be stored: of another cache, or of which something is missing.
    pub(super) fn check_complete(&self, shared: &Arc<Shared>) -> Result<(), Refusal> {
        self.check_owner(shared)?;
        if self.filled == self.len { Ok(()) } else { Err(Refusal::WrongUpload) }
    }

    /// Segments that it will hold when all has arrived.
    pub(super) fn segments_wanted(&self) -> usize {
        self.len.div_ceil(self.shared.segment_len())
    }

    /// Takes as many of `bytes` as its segments have room for.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> usize {
        let segment_len = self.shared.segment_len();
        let room = self.segments.len() * segment_len - self.filled;
        let at = self.filled % segment_len;
        let taken = bytes.len().min(room).min(segment_len - at).min(self.len - self.filled);
        if let Some(&segment) = self.segments.get(self.filled / segment_len) {
            let start = self.shared.table().layout.start(segment);
            // SAFETY: the segment is this upload's own, and unpublished.
            unsafe { self.shared.table().region.write(start + at, &bytes[..taken]) };
        }
        self.filled += taken;
        taken
    }

    /// Takes all of `bytes`, for which it has room.
    pub(super) fn fill_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.fill(bytes);
            assert!(taken > 0, "the segments were taken beforehand");
            bytes = &bytes[taken..];
        }
    }

    /// What lies in its `i`th segment.
    pub(super) fn piece(&self, i: usize) -> &[u8] {
        let Some(&segment) = self.segments.get(i) else { return &[] };
        let table = self.shared.table();
        let segment_len = self.shared.segment_len();
        let len = (self.filled - i * segment_len).min(segment_len);
        // SAFETY: this upload wrote these bytes and nobody else can.
        unsafe { table.region.bytes(table.layout.start(segment), len) }
    }

    /// How many segments stay a chain: all, unless the last one's content fits in the item.
    pub(super) fn chain_len(&self) -> usize {
        let rest = self.len % self.shared.segment_len();
        let inline = rest <= self.shared.table().layout.inline_max();
        self.segments.len() - usize::from(inline && rest > 0)
    }

    /// The part of the value that goes into the item.
    pub(super) fn tail(&self) -> &[u8] {
        if self.chain_len() < self.segments.len() { self.piece(self.chain_len()) } else { &[] }
    }

    /// Links up the segments that stay a chain; the first of them.
    pub(super) fn link_chain(&self) -> Option<u32> {
        let chain = self.segments.get(..self.chain_len())?;
        let table = self.shared.table();
        let nexts = chain.iter().skip(1).map(|next| next + 1).chain([0]);
        for (&segment, next) in chain.iter().zip(nexts) {
            let entry = table.entry(segment);
            entry.next().store(next, Ordering::Relaxed);
            entry.leases().store(0, Ordering::Relaxed);
            entry.set_state(SegmentState::Chain);
        }
        let first = chain.first().copied();
        strict_assert!(
            first.is_none_or(|first| self.shared.chain_segments(first).eq(chain.iter().copied())),
            "what was linked up is read"
        );
        first
    }

    /// Lets go of the chain, which an item owns now, and gives the rest back; the chain's segments.
    pub(super) fn release_chain(mut self) -> usize {
        let chain_len = self.chain_len();
        self.segments.drain(..chain_len);
        self.shared.alloc().uploading -= chain_len;
        chain_len
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.segments.is_empty() {
            self.shared.alloc().uploading -= self.segments.len();
            self.shared.free(&self.segments);
        }
    }
}

/// A large value under a reader: its chain, and the segment that the item with the value's tail is
/// in, are not used again as long as the lease lives. Making one takes the same time for any length.
#[derive(Debug)]
pub struct ChainLease {
    shared: Arc<Shared>,
    /// The first segment of the chain.
    first: u32,
    /// Bytes in the chain.
    chain_len: usize,
    /// Where the tail is in the region, and how long.
    tail: (usize, usize),
    /// A piece of the chain that was read lately, by its number, and its segment: the next one is
    /// found from here.
    cursor: Cell<(usize, u32)>,
    /// Not if too much of the memory was leased already when it was made.
    may_be_kept: bool,
}

impl ChainLease {
    /// A lease on the value of `record`, most of which is in `chain`. The record's witness keeps it
    /// alive for now.
    #[cold]
    #[inline(never)]
    pub(super) fn new(shared: &Arc<Shared>, record: &Record<'_>, chain: Chain) -> Self {
        let tail = (record.value_offset(), record.header.inline_len());
        let chain_len = chain.value_len as usize - tail.1;
        let (first, cursor) = (chain.first, Cell::new((0, chain.first)));
        let shared = Arc::clone(shared);
        let mut lease = Self { shared, first, chain_len, tail, cursor, may_be_kept: true };
        lease.may_be_kept = lease.hold();
        lease
    }

    fn tail_segment(&self) -> Option<u32> {
        (self.tail.1 > 0).then(|| self.shared.table().layout.segment_of(self.tail.0))
    }

    /// Segments that have a count of leases, with the number of segments that it keeps from being
    /// used again.
    fn counted(&self) -> impl Iterator<Item = (u32, usize)> {
        let chain = (self.first, self.chain_len.div_ceil(self.shared.segment_len()));
        [chain].into_iter().chain(self.tail_segment().map(|segment| (segment, 1)))
    }

    /// Keeps the value's segments from being used again. The first lease on a segment is charged for
    /// it, and others are not: however often a value is leased, it keeps the same memory. False if
    /// more is charged now than may be, and this lease added to it.
    fn hold(&self) -> bool {
        let mut fits = true;
        for (segment, charge) in self.counted() {
            let leases = self.shared.table().entry(segment).leases();
            let before = leases.fetch_add(1, Ordering::AcqRel);
            if (before & !RETIRED).is_multiple_of(LEASE_CHARGE) {
                leases.fetch_add(charge as u64 * LEASE_CHARGE, Ordering::AcqRel);
                fits &= self.shared.charge_lease(charge);
            }
        }
        fits
    }

    /// Ends a hold on `segment`. The last one gives back the charge, and the segment if nothing else
    /// refers to it.
    fn let_go(&self, segment: u32) {
        let leases = self.shared.table().entry(segment).leases();
        let count = |word: u64| word % LEASE_CHARGE;
        let without = |word: u64| if count(word) == 1 { word & RETIRED } else { word - 1 };
        let before = leases
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(without(word)))
            .expect("there is always a next word");
        if count(before) == 1 {
            let charged = (before & !RETIRED) / LEASE_CHARGE;
            self.shared.unlease(usize::try_from(charged).expect("segments fit in memory"));
            if before & RETIRED != 0 {
                self.shared.recycle(segment);
            }
        }
    }

    /// The segment of the `piece`th part of the chain.
    fn segment(&self, piece: usize) -> u32 {
        let (at, segment) = self.cursor.get();
        let (at, segment) = if at <= piece { (at, segment) } else { (0, self.first) };
        let mut segments = self.shared.chain_segments(segment);
        let segment = segments.nth(piece - at).expect("a chain is as long as its value");
        self.cursor.set((piece, segment));
        strict_assert!(self.shared.table().entry(segment).is(SegmentState::Chain), "{segment}");
        segment
    }
}

impl Clone for ChainLease {
    fn clone(&self) -> Self {
        // Never the first one: `self` holds the same segments.
        self.hold();
        let cursor = self.cursor.clone();
        Self { shared: Arc::clone(&self.shared), cursor, ..*self }
    }
}

impl Lease for ChainLease {
    fn len(&self) -> usize {
        self.chain_len + self.tail.1
    }

    fn may_be_kept(&self) -> bool {
        self.may_be_kept
    }

    fn piece(&self, offset: usize) -> &[u8] {
        let table = self.shared.table();
        if let Some(at) = offset.checked_sub(self.chain_len) {
            let (start, len) = self.tail;
            let at = at.min(len);
            // SAFETY: published with the item, and the lease keeps the item's segment from being
            // recycled.
            return unsafe { table.region.bytes(start + at, len - at) };
        }
        let segment_len = self.shared.segment_len();
        let at = offset % segment_len;
        let len = (segment_len - at).min(self.chain_len - offset);
        let start = table.layout.start(self.segment(offset / segment_len));
        // SAFETY: published with the item, and the lease keeps the chain from being recycled.
        unsafe { table.region.bytes(start + at, len) }
    }
}

impl Drop for ChainLease {
    fn drop(&mut self) {
        for (segment, _) in self.counted() {
            self.let_go(segment);
        }
    }
}
