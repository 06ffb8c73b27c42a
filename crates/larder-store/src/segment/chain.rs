//! Large values: whole segments of their own for the front, the rest inline in the item. An upload
//! fills them as the bytes arrive; a lease reads them for as long as it takes.

use super::Shared;
use super::record::Record;
use super::sync::Ordering;
use super::table::RETIRED;
use crate::Lease;
use std::sync::Arc;

/// A value that arrives in pieces. Its segments belong to nobody else until it is stored; dropped
/// before, they are free again at once, for nobody has ever seen them.
#[derive(Debug)]
pub struct Upload {
    pub(super) shared: Arc<Shared>,
    pub(super) segments: Vec<u32>,
    /// The announced length.
    pub(super) len: usize,
    pub(super) filled: usize,
}

impl Upload {
    pub(super) fn new(shared: &Arc<Shared>, len: usize) -> Self {
        Self { shared: Arc::clone(shared), segments: Vec::new(), len, filled: 0 }
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
            entry.sealed().store(0, Ordering::Relaxed);
        }
        chain.first().copied()
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
            let mut alloc = self.shared.alloc();
            alloc.uploading -= self.segments.len();
            self.segments.drain(..).for_each(|segment| alloc.give_back(segment));
        }
    }
}

/// A large value under a reader. Its chain is kept; what was inline is copied, for the item itself
/// may move.
#[derive(Debug)]
pub struct ChainLease {
    shared: Arc<Shared>,
    segments: Vec<u32>,
    chain_len: usize,
    tail: Box<[u8]>,
}

impl ChainLease {
    /// A lease on the chain of `record`, which its witness keeps alive for now. `None` if too much
    /// of the memory is leased already.
    pub(super) fn new(shared: &Arc<Shared>, record: &Record<'_>) -> Option<Self> {
        let chain = record.chain()?;
        let segments: Vec<u32> = shared.chain_segments(chain.first).collect();
        let tail = record.inline_value();
        let chain_len = chain.value_len as usize - tail.len();
        shared.lease(segments.len()).then(|| {
            shared.table().entry(chain.first).leases().fetch_add(1, Ordering::AcqRel);
            Self { shared: Arc::clone(shared), segments, chain_len, tail: tail.into() }
        })
    }
}

impl Clone for ChainLease {
    fn clone(&self) -> Self {
        self.shared.leased.fetch_add(self.segments.len(), Ordering::Relaxed);
        let leases = self.shared.table().entry(self.segments[0]).leases();
        leases.fetch_add(1, Ordering::AcqRel);
        let (segments, tail) = (self.segments.clone(), self.tail.clone());
        Self { shared: Arc::clone(&self.shared), segments, chain_len: self.chain_len, tail }
    }
}

impl Lease for ChainLease {
    fn len(&self) -> usize {
        self.chain_len + self.tail.len()
    }

    fn piece(&self, offset: usize) -> &[u8] {
        if offset >= self.chain_len {
            return self.tail.get(offset - self.chain_len..).unwrap_or_default();
        }
        let segment_len = self.shared.segment_len();
        let at = offset % segment_len;
        let len = (segment_len - at).min(self.chain_len - offset);
        let table = self.shared.table();
        let start = table.layout.start(self.segments[offset / segment_len]);
        // SAFETY: published with the item, and the lease keeps the chain from being recycled.
        unsafe { table.region.bytes(start + at, len) }
    }

    fn heap_len(&self) -> usize {
        self.tail.len() + self.segments.capacity() * size_of::<u32>()
    }
}

impl Drop for ChainLease {
    fn drop(&mut self) {
        self.shared.unlease(self.segments.len());
        let first = self.segments[0];
        let before = self.shared.table().entry(first).leases().fetch_sub(1, Ordering::AcqRel);
        if before == RETIRED | 1 {
            self.shared.recycle_chain(first);
        }
    }
}
