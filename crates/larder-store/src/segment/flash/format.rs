//! Items as they lie on flash, and what an index word says of them.
//!
//! An item on flash is a record (see `header`) whose expiry, if it has one, is exact, followed by a word of
//! checksum, up to the next multiple of the unit. It was part of a *leaving* segment of memory, which was
//! written as one *block*; blocks follow each other in a page.
//!
//! The *place* of an item is its offset on the device in units, of 8 bytes up to a TiB. Its *span* is a
//! class of lengths: so much is read to get it.
#![expect(clippy::cast_possible_truncation, reason = "offsets on flash have 64 bits")]

use super::super::header::{Header, State};
use super::super::header_page::FlashContent;
use super::super::slot::{PLACE_BITS, Slot};
use crate::FlashConfig;

/// The bytes of a checksum.
pub(in super::super) const CHECKSUM_LEN: usize = 8;

/// The most bytes that a record takes on flash beside those in memory: an exact expiry, the checksum, and
/// what is left of its last unit.
pub(in super::super) const LEN_ADDED_MAX: usize = 8 + CHECKSUM_LEN + 127;

/// The length of each span in bytes.
const SPANS: [u32; 16] = [
    512,
    1 << 10,
    3 << 9,
    2 << 10,
    3 << 10,
    4 << 10,
    6 << 10,
    8 << 10,
    12 << 10,
    16 << 10,
    24 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    1 << 20,
];

/// The shortest span that contains `len` bytes.
pub(in super::super) fn span_of(len: usize) -> u8 {
    SPANS.partition_point(|span| (*span as usize) < len) as u8
}

/// The length of a span in bytes.
pub(in super::super) fn span_len(span: u8) -> usize {
    SPANS[usize::from(span)] as usize
}

/// The bytes that an item with this span counts for: the middle of those that it may have.
pub(in super::super) fn counted_len(span: u8) -> usize {
    let shortest = span.checked_sub(1).map_or(0, span_len);
    usize::midpoint(shortest, span_len(span))
}

/// Sizes on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Format {
    unit_shift: u32,
    page_shift: u32,
    /// The length of a block, which is that of a segment of memory.
    pub(in super::super) block_len: usize,
    /// The number of pages.
    pub(in super::super) pages: usize,
    /// Whether items have a CAS.
    cas: bool,
    /// What tells this content of the device from earlier ones.
    pub(in super::super) id: u128,
}

/// Where an item is, and what its bytes have to agree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Origin {
    /// Its offset on the device.
    pub(in super::super) offset: u64,
    /// The sequence of its page.
    pub(in super::super) sequence: u64,
}

impl Format {
    pub(in super::super) fn new(
        config: &FlashConfig,
        block_len: usize,
        cas: bool,
        id: u128,
    ) -> Self {
        let len = config.device.len();
        let page_shift = config.page_len.ilog2();
        // The first unit of 8 bytes or more with which places reach the end.
        let unit_shift = len.div_ceil(1 << PLACE_BITS).next_power_of_two().ilog2().max(3);
        let pages = (len >> page_shift) as usize;
        Self { unit_shift, page_shift, block_len, pages, cas, id }
    }

    /// What the region keeps of it.
    pub(in super::super) fn content(&self) -> FlashContent {
        FlashContent { id: self.id, pages: self.pages as u64, page_len: self.page_len() }
    }

    pub(in super::super) fn page_len(&self) -> u64 {
        1 << self.page_shift
    }

    pub(in super::super) fn blocks_of_page(&self) -> u32 {
        (self.page_len() / self.block_len as u64) as u32
    }

    /// The offset of a block on the device.
    pub(in super::super) fn block_offset(&self, page: u32, block: u32) -> u64 {
        (u64::from(page) << self.page_shift) + u64::from(block) * self.block_len as u64
    }

    pub(in super::super) fn place_of(&self, offset: u64) -> u64 {
        offset >> self.unit_shift
    }

    pub(in super::super) fn offset_of(&self, slot: Slot) -> u64 {
        slot.place() << self.unit_shift
    }

    pub(in super::super) fn page_of(&self, slot: Slot) -> usize {
        (self.offset_of(slot) >> self.page_shift) as usize
    }

    /// The bytes of a device that have to be read for an item: from the first to the one behind the last,
    /// at multiples of `align`. They are in one block.
    pub(in super::super) fn extent(&self, slot: Slot, align: usize) -> (u64, u64) {
        let (offset, align, block) = (self.offset_of(slot), align as u64, self.block_len as u64);
        let block_end = (offset / block + 1) * block;
        let end = (offset + span_len(slot.span()) as u64).next_multiple_of(align).min(block_end);
        (offset / align * align, end)
    }

    /// The bytes that a record takes on flash.
    pub(in super::super) fn len_of(&self, header: Header) -> usize {
        (header.record_len(self.cas) + CHECKSUM_LEN).next_multiple_of(1 << self.unit_shift)
    }

    /// The checksum of a record, whose bytes behind the header are `rest`.
    pub(in super::super) fn checksum(&self, header: Header, rest: &[u8], origin: Origin) -> u64 {
        // Readers may change these while the item is written.
        let fixed = header.with_access_code(0).with(State::Fetched, false).with(State::Dead, false);
        let content = rapidhash::v3::rapidhash_v3(rest);
        let (low, high) = (self.id as u64, (self.id >> 64) as u64);
        [fixed.0, origin.offset, origin.sequence, low, high].into_iter().fold(content, mix)
    }
}

/// Mixes two words (the folded multiplication of wyhash, Wang Yi 2019).
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xd1b5_4a32_d192_ed03);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_contains_its_length() {
        for len in [1, 511, 512, 513, 1100, 4097, 100_000, 1 << 20] {
            let span = span_of(len);
            assert!(span_len(span) >= len && (span == 0 || span_len(span - 1) < len), "{len}");
        }
    }

    #[test]
    fn a_checksum_depends_on_all_but_what_readers_change() {
        let format = Format {
            unit_shift: 3,
            page_shift: 20,
            block_len: 1 << 16,
            pages: 4,
            cas: true,
            id: 7,
        };
        let header = Header::new(3, 10);
        let origin = Origin { offset: 4096, sequence: 9 };
        let sum = format.checksum(header, b"abc", origin);
        assert_eq!(sum, format.checksum(header.with(State::Fetched, true), b"abc", origin));
        assert_eq!(sum, format.checksum(header.with_access_code(77), b"abc", origin));
        assert_ne!(sum, format.checksum(header.with(State::Stale, true), b"abc", origin));
        assert_ne!(sum, format.checksum(header, b"abd", origin));
        assert_ne!(sum, format.checksum(header, b"abc", Origin { sequence: 10, ..origin }));
        assert_ne!(sum, format.checksum(header, b"abc", Origin { offset: 4104, ..origin }));
        assert_ne!(sum, Format { id: 8, ..format }.checksum(header, b"abc", origin));
    }
}
