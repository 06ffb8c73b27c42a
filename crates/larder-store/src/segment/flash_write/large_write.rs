//! Writing a large item to flash: its head, and its value from the segments of its chain.

use crate::segment::cache::shared::Shared;
use crate::segment::flash::format::{CHECKSUM_LEN, Origin, add_piece};
use crate::segment::flash::tier::Flash;
use crate::segment::item::record::Record;
use crate::segment::item::witness::{OwnedSegment, Witness};
use crate::segment::large_value::lease::ChainLease;
use crate::{Expiry, Lease};
use std::io;
use std::sync::Arc;

/// A large item that is being demoted, with a lease on its value.
pub(crate) struct LargeWrite {
    value: ChainLease,
    pub(crate) expiry: Expiry,
    /// The number of bytes that the item occupies on flash.
    pub(crate) len: usize,
}

impl LargeWrite {
    /// Returns the item of a write buffer, or `None` if the index does not refer to it any more.
    pub(crate) fn of(shared: &Arc<Shared>, flash: &Flash, segment: &OwnedSegment) -> Option<Self> {
        let (table, cas) = (shared.table(), shared.config.cas);
        let start = table.layout.start(segment.0);
        let hash = shared.hash(Record::at(table, start, cas, Witness::owner(segment)).key());
        // While the stripe is locked, no thread frees the chain.
        let stripe = shared.index.lock(hash);
        stripe.find(|word| word.offset() == start)?;
        let record = Record::at(table, start, cas, Witness::locked(&stripe));
        let chain = record.chain()?;
        let len = flash.format.large_len(record.value_len())?;
        let (value, expiry) = (ChainLease::new(shared, &record, chain), record.expiry());
        Some(Self { value, expiry, len })
    }

    /// Writes the item to the blocks at `origin`: first the value, then the head.
    pub(crate) fn write(
        &self,
        shared: &Shared,
        flash: &Flash,
        segment: &OwnedSegment,
        origin: Origin,
    ) -> io::Result<()> {
        let (table, align) = (shared.table(), flash.device.align());
        let (start, cas) = (table.layout.start(segment.0), shared.config.cas);
        let record = Record::at(table, start, cas, Witness::owner(segment));
        let mut at = origin.offset + flash.format.head_len as u64;
        let (mut sum, mut written) = (0, 0);
        while written < self.value.len() {
            let piece = self.value.piece(written);
            sum = add_piece(sum, piece);
            let len = piece.len().next_multiple_of(align);
            // Copy the tail: in the item's own segment it may have any alignment, and the bytes
            // after it belong to other items.
            let copy;
            let bytes = if piece.as_ptr().addr().is_multiple_of(align) && len == piece.len() {
                piece
            } else {
                copy = Sectors::of([piece], len, align);
                copy.bytes()
            };
            flash.device.write_bytes(at, bytes)?;
            (at, written) = (at + len as u64, written + piece.len());
        }
        // On flash, the complete value follows the head.
        let header = record.header_without_value();
        let record_len = header.record_len(cas);
        let kept = record.fields_and_key();
        let padding = [0; 8];
        let padding = &padding[..record_len - 8 - kept.len()];
        let value_sum = sum.to_ne_bytes();
        let checked = [kept, padding, &value_sum].concat();
        let sum = flash.format.checksum(header, &checked, origin).to_ne_bytes();
        debug_assert!(record_len + 2 * CHECKSUM_LEN <= flash.format.head_len);
        let head = [&header.0.to_ne_bytes()[..], &checked, &sum];
        let head = Sectors::of(head, flash.format.head_len, align);
        flash.device.write_bytes(origin.offset, head.bytes())
    }
}

/// A copy of bytes, padded with zeroes. It starts at an aligned address, so that the device can
/// write it.
struct Sectors {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Sectors {
    /// Concatenates the pieces, and pads them with zeroes to `len` bytes.
    fn of<const N: usize>(pieces: [&[u8]; N], len: usize, align: usize) -> Self {
        let mut memory = vec![0; len + align];
        let start = memory.as_ptr().align_offset(align).min(align);
        let mut at = start;
        for piece in pieces {
            memory[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Self { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}
