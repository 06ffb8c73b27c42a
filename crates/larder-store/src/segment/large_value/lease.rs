//! Leases, which keep the segments of a large value from being reused while a reader needs them.

use crate::Lease;
use crate::segment::cache::shared::Shared;
use crate::segment::item::record::{Chain, Record};
use crate::segment::memory::table::{LEASE_CHARGE, RETIRED, SegmentState};
use crate::segment::sync::Ordering;
use std::cell::Cell;
use std::sync::Arc;

/// A reader's access to a large value. While the lease exists, the segments of the value's chain
/// are not reused. If the item's segment contains a tail of the value, that segment is not reused
/// either. Creating a lease takes the same time for values of any length.
#[derive(Debug)]
pub struct ChainLease {
    shared: Arc<Shared>,
    /// The number of the chain's first segment.
    first: u32,
    /// The length in bytes of the value's part in the chain.
    chain_len: usize,
    /// The tail's offset in the region, and its length in bytes.
    tail: (usize, usize),
    /// The number and the segment of the chain piece that was read last. The search for a later
    /// piece starts there.
    cursor: Cell<(usize, u32)>,
    /// Whether the lease may outlive the batch. False if segments were charged for the lease and
    /// the leased memory then exceeded the maximum.
    may_be_kept: bool,
}

impl ChainLease {
    /// Makes a lease on the value of `record`, most of which is in `chain`. The record's witness
    /// protects the value until this function returns.
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

    /// Returns the segments whose entries count this lease, each with the number of segments that
    /// this count protects. The first segment of the chain counts the lease for the whole chain.
    /// The segment of the tail counts the lease only for that segment.
    fn counted(&self) -> impl Iterator<Item = (u32, usize)> {
        let chain = (self.first, self.chain_len.div_ceil(self.shared.segment_len()));
        [chain].into_iter().chain(self.tail_segment().map(|segment| (segment, 1)))
    }

    /// Protects the value's segments from reuse. Charges only the first lease on a segment, because
    /// further leases hold no more memory. Returns false if this lease was charged and more memory
    /// is leased now than allowed.
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

    /// Ends this lease on `segment`. If this is the last lease on the segment, subtracts the
    /// segment's charge from the number of leased segments. If the segment was also retired,
    /// recycles it, with its chain if it has one.
    fn release(&self, segment: u32) {
        let leases = self.shared.table().entry(segment).leases();
        let count = |word: u64| word % LEASE_CHARGE;
        let without = |word: u64| if count(word) == 1 { word & RETIRED } else { word - 1 };
        let before = leases
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(without(word)))
            .expect("the closure never returns `None`");
        if count(before) == 1 {
            let charged = (before & !RETIRED) / LEASE_CHARGE;
            self.shared.unlease(usize::try_from(charged).expect("segments fit in memory"));
            if before & RETIRED != 0 {
                self.shared.recycle(segment);
            }
        }
    }

    /// Returns the segment that contains piece number `piece` of the chain.
    fn segment(&self, piece: usize) -> u32 {
        let (at, segment) = self.cursor.get();
        let (at, segment) = if at <= piece { (at, segment) } else { (0, self.first) };
        let mut segments = self.shared.chain_segments(segment);
        let segment =
            segments.nth(piece - at).expect("a chain has a segment for each piece of its value");
        self.cursor.set((piece, segment));
        strict_assert!(self.shared.table().entry(segment).is(SegmentState::Chain), "{segment}");
        segment
    }
}

impl Clone for ChainLease {
    fn clone(&self) -> Self {
        // The new lease is not charged, because `self` holds the same segments.
        self.hold();
        let cursor = self.cursor.clone();
        Self { shared: Arc::clone(&self.shared), cursor, ..*self }
    }
}

impl Lease for ChainLease {
    fn len(&self) -> usize {
        self.chain_len + self.tail.1
    }

    fn memory(&self) -> usize {
        self.counted().map(|(_, segments)| segments).sum::<usize>() * self.shared.segment_len()
    }

    fn may_be_kept(&self) -> bool {
        self.may_be_kept
    }

    fn piece(&self, offset: usize) -> &[u8] {
        let table = self.shared.table();
        if let Some(at) = offset.checked_sub(self.chain_len) {
            let (start, len) = self.tail;
            let at = at.min(len);
            // SAFETY: the bytes were published with the item, and the lease keeps the item's
            // segment from being recycled.
            return unsafe { table.region.bytes(start + at, len - at) };
        }
        let segment_len = self.shared.segment_len();
        let at = offset % segment_len;
        let len = (segment_len - at).min(self.chain_len - offset);
        let start = table.layout.start(self.segment(offset / segment_len));
        // SAFETY: the bytes were published with the item, and the lease keeps the chain from being
        // recycled.
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
