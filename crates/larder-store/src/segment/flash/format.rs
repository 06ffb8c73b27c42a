//! The flash format of items, and the format of index words that refer to items on flash.
//!
//! On flash, an item consists of a record (see `item::header`), a checksum of 8 bytes, and padding
//! to a multiple of the unit. If the item expires, its record contains the exact expiry. Items are
//! collected in a *write buffer* in memory, which is written as one *block*. A page consists of
//! blocks.
//!
//! The *flash offset* of an item is its offset on the device in units. A unit is 8 bytes on devices
//! of up to a TiB. The *span* of an item is its length class. A read of the item reads a whole
//! span, because the index word does not contain the exact length.
//!
//! In memory, the front of a large value has segments of its own. On flash, a large item has blocks
//! of its own:
//!
//! ```text
//! ┌─────────────────────────────────────────┬──────────────────┬────────┐
//! │ head: the record without its value, and │ the whole value  │ unused │
//! │ the checksums of the value and of both  │                  │        │
//! └─────────────────────────────────────────┴──────────────────┴────────┘
//!  1536 bytes, or a sector if that is longer
//! ```
//! A large item starts at a block boundary, so the low bits of its flash offset would always be 0.
//! These bits contain the item's length instead.
#![expect(clippy::cast_possible_truncation, reason = "offsets on flash have 64 bits")]

use crate::segment::index::word::{FLASH_OFFSET_BITS, IndexWord, LARGE_SPAN};
use crate::segment::item::header::{Header, State};
use crate::segment::memory::header_page::FlashContent;
use crate::segment::memory::layout::ITEM_HEAD_MAX;
use crate::{FlashConfig, FlashLocation};

/// The length of a checksum in bytes.
pub(crate) const CHECKSUM_LEN: usize = 8;

/// The maximum number of bytes by which a record is longer on flash than in memory: an exact
/// expiry, the checksum, and padding to a multiple of the unit.
pub(crate) const LEN_ADDED_MAX: usize = 8 + CHECKSUM_LEN + 127;

/// The minimum length in bytes of a large item's head. The head has room for a record without a
/// value and for two checksums.
const HEAD_LEN_MIN: usize = 1536;

const _: () = assert!(ITEM_HEAD_MAX + 2 * CHECKSUM_LEN <= HEAD_LEN_MIN);

/// The length in bytes of each span except [`LARGE_SPAN`].
const SPANS: [u32; LARGE_SPAN as usize] = [
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
    256 << 10,
    1 << 20,
];

/// Returns the index of the shortest span with at least `len` bytes, or [`LARGE_SPAN`] if no span
/// is long enough.
pub(crate) fn span_of(len: usize) -> u8 {
    SPANS.partition_point(|span| (*span as usize) < len) as u8
}

/// Returns the length of a span in bytes.
fn span_len(span: u8) -> usize {
    SPANS[usize::from(span)] as usize
}

/// The sizes and offsets of a flash tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    unit_shift: u32,
    page_shift: u32,
    /// The length in bytes of a large item's head.
    pub(crate) head_len: usize,
    /// The length of a block in bytes, equal to the segment length.
    pub(crate) block_len: usize,
    /// The number of pages.
    pub(crate) pages: usize,
    /// Whether records contain a CAS value.
    cas: bool,
    /// An identifier that distinguishes this content of the device from earlier content.
    pub(crate) id: u128,
}

/// The location of an item on flash. The item's checksum covers both fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The item's offset on the device, in bytes.
    pub(crate) offset: u64,
    /// The sequence of the item's page.
    pub(crate) sequence: u64,
}

impl Format {
    pub(crate) fn new(config: &FlashConfig, block_len: usize, cas: bool, id: u128) -> Self {
        let len = config.device.len();
        let page_shift = config.page_len.ilog2();
        // The smallest unit, at least 8 bytes, with which flash offsets can address the whole
        // device.
        let unit_shift = len.div_ceil(1 << FLASH_OFFSET_BITS).next_power_of_two().ilog2().max(3);
        let pages = (len >> page_shift) as usize;
        let head_len = HEAD_LEN_MIN.next_multiple_of(config.device.align());
        Self { unit_shift, page_shift, head_len, block_len, pages, cas, id }
    }

    /// Returns the description of this format, for the region's header page.
    pub(crate) fn content(&self) -> FlashContent {
        FlashContent {
            id: self.id,
            pages: self.pages as u64,
            page_len: self.page_len(),
            head_len: self.head_len as u64,
        }
    }

    pub(crate) fn page_len(&self) -> u64 {
        1 << self.page_shift
    }

    pub(crate) fn blocks_of_page(&self) -> u32 {
        (self.page_len() / self.block_len as u64) as u32
    }

    /// Returns the device offset of a block, in bytes.
    pub(crate) fn block_offset(&self, page: u32, block: u32) -> u64 {
        (u64::from(page) << self.page_shift) + u64::from(block) * self.block_len as u64
    }

    /// Returns the unit in bytes. The length of each item on flash is a multiple of this unit.
    pub(crate) fn unit(&self) -> usize {
        1 << self.unit_shift
    }

    /// Returns the flash offset of an item at `offset` on the device.
    pub(crate) fn flash_offset_of(&self, offset: u64) -> u64 {
        offset >> self.unit_shift
    }

    pub(crate) fn offset_of(&self, word: IndexWord) -> u64 {
        let len_mask = if word.span() == LARGE_SPAN { (1 << self.large_bits()) - 1 } else { 0 };
        (word.flash_offset() & !len_mask) << self.unit_shift
    }

    /// Returns how many low bits of a flash offset are 0 at the start of a block.
    fn large_bits(&self) -> u32 {
        self.block_len.ilog2().saturating_sub(self.unit_shift)
    }

    /// Returns log2 of a unit in bytes: a large item's flash offset contains the item's length in
    /// this unit.
    fn large_shift(&self) -> u32 {
        self.page_shift.saturating_sub(self.large_bits()).max(self.head_len.ilog2())
    }

    /// Returns the number of bytes that a large item with a value of `value_len` bytes occupies on
    /// flash. Returns `None` if the item does not fit in a page, or if its length does not fit in a
    /// flash offset.
    pub(crate) fn large_len(&self, value_len: usize) -> Option<usize> {
        let len = (self.head_len + value_len).next_multiple_of(1 << self.large_shift());
        let is_possible =
            len as u64 <= self.page_len() && (len >> self.large_shift()) < 1 << self.large_bits();
        is_possible.then_some(len)
    }

    /// Returns the flash offset of a large item of `len` bytes that starts at the device offset
    /// `offset`, a block boundary.
    pub(crate) fn large_flash_offset(&self, offset: u64, len: usize) -> u64 {
        self.flash_offset_of(offset) | (len >> self.large_shift()) as u64
    }

    /// Returns the device offset of a large item's value, and the maximum length of the value in
    /// bytes.
    pub(crate) fn value_extent(&self, word: IndexWord) -> (u64, usize) {
        let len = self.large_len_of(word).saturating_sub(self.head_len);
        (self.offset_of(word) + self.head_len as u64, len)
    }

    fn large_len_of(&self, word: IndexWord) -> usize {
        let steps = word.flash_offset() & ((1 << self.large_bits()) - 1);
        (steps as usize) << self.large_shift()
    }

    /// Returns the length, in bytes, that counters record for an item. For a large item, this is
    /// its length on flash. For any other item, it is the mean of the shortest and the longest
    /// length in its span.
    pub(crate) fn counted_len(&self, word: IndexWord) -> usize {
        if word.span() == LARGE_SPAN {
            return self.large_len_of(word);
        }
        let shortest = word.span().checked_sub(1).map_or(0, span_len);
        usize::midpoint(shortest, span_len(word.span()))
    }

    /// Returns the length in bytes of an item's first read: its span, or a large item's head.
    pub(crate) fn read_len(&self, word: IndexWord) -> usize {
        if word.span() == LARGE_SPAN { self.head_len } else { span_len(word.span()) }
    }

    pub(crate) fn page_of(&self, word: IndexWord) -> usize {
        (self.offset_of(word) >> self.page_shift) as usize
    }

    /// Returns the page of an item and its offset in the page.
    pub(crate) fn location(&self, word: IndexWord) -> FlashLocation {
        let offset = self.offset_of(word) & (self.page_len() - 1);
        FlashLocation { page: self.page_of(word) as u32, offset: offset as u32 }
    }

    /// Returns the device offsets, in bytes, at which the first read of an item starts and ends.
    /// Both are multiples of `align`, and the range lies in one block.
    pub(crate) fn extent(&self, word: IndexWord, align: usize) -> (u64, u64) {
        let (offset, align, block) = (self.offset_of(word), align as u64, self.block_len as u64);
        let block_end = (offset / block + 1) * block;
        let end = (offset + self.read_len(word) as u64).next_multiple_of(align).min(block_end);
        (offset / align * align, end)
    }

    /// Returns the number of bytes that a record occupies on flash. For a large item, see
    /// [`Format::large_len`].
    pub(crate) fn len_of(&self, header: Header) -> usize {
        (header.record_len(self.cas) + CHECKSUM_LEN).next_multiple_of(1 << self.unit_shift)
    }

    /// Returns the checksum of a record at its location on flash. `rest` contains the bytes after
    /// the record's header.
    pub(crate) fn checksum(&self, header: Header, rest: &[u8], origin: Origin) -> u64 {
        // Excludes the fields that other threads may change while the item is written.
        let fixed = header.with_access_code(0).with(State::Fetched, false).with(State::Dead, false);
        let content = rapidhash::v3::rapidhash_v3(rest);
        let (low, high) = (self.id as u64, (self.id >> 64) as u64);
        [fixed.0, origin.offset, origin.sequence, low, high].into_iter().fold(content, mix)
    }
}

/// Extends the checksum `sum` of a large value with the next piece. Every piece except the last has
/// the length of a block.
pub(crate) fn add_piece(sum: u64, piece: &[u8]) -> u64 {
    mix(sum, rapidhash::v3::rapidhash_v3(piece))
}

/// Mixes two words (the folded multiplication of wyhash, Wang Yi 2019).
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xd1b5_4a32_d192_ed03);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::index::word::{Pattern, hash_prefix};

    #[test]
    fn a_span_contains_its_length() {
        for len in [1, 511, 512, 513, 1100, 4097, 100_000, 1 << 20] {
            let span = span_of(len);
            assert!(span_len(span) >= len && (span == 0 || span_len(span - 1) < len), "{len}");
        }
    }

    #[test]
    fn the_flash_offset_of_a_large_item_contains_its_offset_and_length() {
        for (unit_shift, page_shift, block_shift) in
            [(3, 24, 16), (3, 26, 20), (7, 26, 16), (3, 20, 14)]
        {
            let format = Format {
                unit_shift,
                page_shift,
                head_len: HEAD_LEN_MIN,
                block_len: 1 << block_shift,
                pages: 4,
                cas: true,
                id: 7,
            };
            for value_len in [1, 50_000, 100_000, 300_000, (1 << 20) - HEAD_LEN_MIN] {
                let Some(len) = format.large_len(value_len) else {
                    assert!(value_len + HEAD_LEN_MIN > (1 << page_shift) / 2, "{value_len}");
                    continue;
                };
                let offset = 3 << block_shift;
                let pattern = Pattern::new(hash_prefix(u64::MAX), 0);
                let flash_offset = format.large_flash_offset(offset, len);
                let word = IndexWord::new(pattern, 8, 0).on_flash(flash_offset, LARGE_SPAN);
                assert_eq!((format.offset_of(word), format.counted_len(word)), (offset, len));
                let head = HEAD_LEN_MIN as u64;
                assert_eq!(format.value_extent(word), (offset + head, len - HEAD_LEN_MIN));
                assert_eq!(format.extent(word, 512), (offset, offset + head));
                assert!(
                    len >= value_len + HEAD_LEN_MIN
                        && len <= value_len + HEAD_LEN_MIN + len / 4 + (128 << 10)
                );
            }
        }
    }

    #[test]
    fn a_checksum_covers_everything_except_reader_marks() {
        let format = Format {
            unit_shift: 3,
            page_shift: 20,
            head_len: 512,
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
