//! Large values: the front is in whole segments of its own, the rest is inline in the item. An upload
//! fills the segments as bytes arrive; a lease keeps them while a reader needs them.

use crate::segment::cache::shared::Shared;
use crate::segment::item::record::{Chain, Record};
use crate::segment::memory::table::{LEASE_CHARGE, RETIRED, SegmentState};
use crate::segment::sync::Ordering;
use crate::{Lease, Refusal};
use std::cell::Cell;
use std::sync::Arc;

/// The share of all segments that uploads may hold, in percent. One of half the limit always fits.
const UPLOAD_SHARE: usize = 62;
/// Values that are read from flash may hold one in so many segments: they wait for each other.
const FETCHED_PART: usize = 4;

/// A value that arrives in pieces. Its segments belong to it alone until it is stored. If it is dropped
/// before, they are free again at once, because no reader has seen them.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<Shared>,
    pub(crate) segments: Vec<u32>,
    /// The announced length in bytes.
    pub(crate) len: usize,
    pub(crate) filled: usize,
    /// It is read from flash: see `Alloc::fetching`.
    is_fetched: bool,
}

impl Upload {
    pub(crate) fn new(shared: &Arc<Shared>, len: usize) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, segments: Vec::new(), len, filled: 0, is_fetched: false }
    }

    /// A value that is read from flash.
    pub(crate) fn fetched(shared: &Arc<Shared>, len: usize) -> Self {
        let mut upload = Self::new(shared, len);
        upload.is_fetched = true;
        upload
    }

    /// Whether it may not have more memory.
    pub(crate) fn is_at_limit(&self) -> bool {
        let limit = self.shared.limit_segments();
        let alloc = self.shared.alloc();
        let (held, max) = if self.is_fetched {
            // The only one may need more than that.
            let is_only = alloc.fetching == self.segments.len();
            (
                alloc.fetching,
                if is_only { limit * UPLOAD_SHARE / 100 } else { limit / FETCHED_PART },
            )
        } else {
            (alloc.uploading, limit * UPLOAD_SHARE / 100)
        };
        held >= max
    }

    /// Adds a segment, which it fills later.
    pub(crate) fn add_segment(&mut self, segment: u32) {
        self.segments.push(segment);
        *self.shared.alloc().held_by_values(self.is_fetched) += 1;
    }

    /// Counts segments out that are not its own any more.
    fn count_out(&self, count: usize) {
        *self.shared.alloc().held_by_values(self.is_fetched) -= count;
    }

    /// Refuses an upload of another cache, whose segments have no meaning in this one.
    pub(crate) fn check_owner(&self, shared: &Arc<Shared>) -> Result<(), Refusal> {
        if Arc::ptr_eq(&self.shared, shared) { Ok(()) } else { Err(Refusal::WrongUpload) }
    }

    /// Refuses an upload that can't be stored, because it is of another cache or incomplete.
    pub(crate) fn check_complete(&self, shared: &Arc<Shared>) -> Result<(), Refusal> {
        self.check_owner(shared)?;
        if self.filled == self.len { Ok(()) } else { Err(Refusal::WrongUpload) }
    }

    /// The number of segments for the announced length.
    pub(crate) fn segments_wanted(&self) -> usize {
        self.len.div_ceil(self.shared.segment_len())
    }

    /// Copies as many of `bytes` as fit into its segments, and returns how many these are.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let segment_len = self.shared.segment_len();
        let room = self.segments.len() * segment_len - self.filled;
        let at = self.filled % segment_len;
        let taken = bytes.len().min(room).min(segment_len - at).min(self.len - self.filled);
        if let Some(&segment) = self.segments.get(self.filled / segment_len) {
            let start = self.shared.table().layout.start(segment);
            // SAFETY: the segment belongs to this upload and is not published.
            unsafe { self.shared.table().region.write(start + at, &bytes[..taken]) };
        }
        self.filled += taken;
        taken
    }

    /// Copies all of `bytes`. The caller has taken enough segments.
    pub(crate) fn fill_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.fill(bytes);
            assert!(taken > 0, "the segments were taken beforehand");
            bytes = &bytes[taken..];
        }
    }

    /// The bytes in its `i`th segment.
    pub(crate) fn piece(&self, i: usize) -> &[u8] {
        let Some(&segment) = self.segments.get(i) else { return &[] };
        let table = self.shared.table();
        let segment_len = self.shared.segment_len();
        let len = (self.filled - i * segment_len).min(segment_len);
        // SAFETY: this upload wrote these bytes and no other thread can change them.
        unsafe { table.region.bytes(table.layout.start(segment), len) }
    }

    /// The number of segments that become the chain: all, unless the content of the last one fits into
    /// the item.
    pub(crate) fn chain_len(&self) -> usize {
        let rest = self.len % self.shared.segment_len();
        let inline = rest <= self.shared.table().layout.inline_max();
        self.segments.len() - usize::from(inline && rest > 0)
    }

    /// The part of the value that is stored inline in the item.
    pub(crate) fn tail(&self) -> &[u8] {
        if self.chain_len() < self.segments.len() { self.piece(self.chain_len()) } else { &[] }
    }

    /// Links the segments that become the chain, and returns the first of them.
    pub(crate) fn link_chain(&self) -> Option<u32> {
        self.link(self.segments.get(..self.chain_len())?)
    }

    /// Links all segments, of which the last need not be full, and returns the first of them.
    pub(crate) fn link_all(&self) -> Option<u32> {
        self.link(&self.segments)
    }

    fn link(&self, chain: &[u32]) -> Option<u32> {
        let table = self.shared.table();
        let nexts = chain.iter().skip(1).map(|next| next + 1).chain([0]);
        for (&segment, next) in chain.iter().zip(nexts) {
            let entry = table.entry(segment);
            entry.next().store(next, Ordering::Relaxed);
            entry.leases().store(0, Ordering::Relaxed);
            entry.clear_owner();
            entry.set_state(SegmentState::Chain);
        }
        let first = chain.first().copied();
        strict_assert!(
            first.is_none_or(|first| self.shared.chain_segments(first).eq(chain.iter().copied())),
            "the chain that was linked is read back"
        );
        first
    }

    /// Gives up the chain, which an item owns now, and frees the other segments; returns the number of
    /// segments in the chain.
    pub(crate) fn release_chain(self) -> usize {
        let chain_len = self.chain_len();
        self.release(chain_len)
    }

    /// The same for one that [`Upload::link_all`] has linked.
    pub(crate) fn release_all(self) -> usize {
        let len = self.segments.len();
        self.release(len)
    }

    fn release(mut self, count: usize) -> usize {
        self.segments.drain(..count);
        self.count_out(count);
        count
    }

    /// Says that its segments were filled with `len` bytes in another way, and frees those that are not
    /// needed. There are as many as are needed.
    pub(crate) fn fill_with(&mut self, len: usize) {
        (self.len, self.filled) = (len, len);
        let unused = self.segments.split_off(self.segments_wanted());
        self.count_out(unused.len());
        self.shared.free(&unused);
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.segments.is_empty() {
            self.count_out(self.segments.len());
            self.shared.free(&self.segments);
        }
    }
}

/// A reader's access to a large value. The segments of its chain, and the segment of the item with its
/// tail, are not reused as long as the lease lives. Making a lease takes the same time for any
/// length.
#[derive(Debug)]
pub struct ChainLease {
    shared: Arc<Shared>,
    /// The first segment of the chain.
    first: u32,
    /// Bytes in the chain.
    chain_len: usize,
    /// Offset of the tail in the region, and its length.
    tail: (usize, usize),
    /// The number and the segment of the piece of the chain that was read last. Later pieces are
    /// found from it.
    cursor: Cell<(usize, u32)>,
    /// False if too much memory was leased already when it was made.
    may_be_kept: bool,
}

impl ChainLease {
    /// A lease on the value of `record`, most of which is in `chain`. The record's witness
    /// protects it meanwhile.
    #[cold]
    #[inline(never)]
    pub(crate) fn new(shared: &Arc<Shared>, record: &Record<'_>, chain: Chain) -> Self {
        let tail = (record.value_offset(), record.inline_len());
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

    /// The segments whose entries count this lease, each with the number of segments that it protects:
    /// the first of the chain for all of them, and that of the tail.
    fn counted(&self) -> impl Iterator<Item = (u32, usize)> {
        let chain = (self.first, self.chain_len.div_ceil(self.shared.segment_len()));
        [chain].into_iter().chain(self.tail_segment().map(|segment| (segment, 1)))
    }

    /// Protects the value's segments from reuse. Only the first lease on a segment is charged for it,
    /// because further leases hold no more memory. False if this lease was charged and more is leased
    /// now than may be.
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

    /// Releases `segment`. The last lease returns the charge, and recycles the segment if it was
    /// retired.
    fn release(&self, segment: u32) {
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

    /// The `piece`th segment of the chain.
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
        // It is never the first lease, so it is not charged: `self` holds the same segments.
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
            self.release(segment);
        }
    }
}
