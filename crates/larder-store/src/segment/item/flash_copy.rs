//! The link from an item in memory to its copy on flash. An item that was copied from flash to
//! memory has such a link until it changes. A small item contains the link. The link of a large
//! item is in the table entry of the first segment of the item's chain, and moves with the chain.
//!
//! ```text
//! 63  62               41 40    37 36           0
//! ┌───┬──────────────────┬────────┬──────────────┐
//! │ 1 │ sequence of page │ span   │ flash offset │   the link; 0 in bit 63: the link is a chain
//! └───┴──────────────────┴────────┴──────────────┘
//! ```
//! The link holds the lowest bits of the page's sequence. If the page's sequence has the same
//! lowest bits in a later use of the page, the checksum or the key shows that the bytes belong to
//! another item, and the read is a miss.
#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

use crate::segment::index::word::{IndexWord, LOCATION_BITS};
use crate::segment::memory::table::Sequence;

const IS_COPY: u32 = 1 << 31;
const SEQUENCE_MASK: u64 = (1 << (63 - LOCATION_BITS)) - 1;

/// For an item in memory, the location of its copy on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlashCopy(u64);

impl FlashCopy {
    /// The first half of a link to a copy that is no longer valid. No link to a chain starts with
    /// this value.
    pub(crate) const FORGOTTEN: u32 = u32::MAX;

    /// Returns the copy that `word` refers to, in a page with this sequence.
    pub(crate) fn of(word: IndexWord, sequence: Sequence) -> Self {
        Self((sequence & SEQUENCE_MASK) << LOCATION_BITS | word.location())
    }

    /// Decodes a large item's flash copy from its chain's word; `None` if the word is 0.
    pub(crate) fn from_chain(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word & !(1 << 63)))
    }

    /// Returns the word that refers to the copy. It is not 0.
    pub(crate) fn chain_word(self) -> u64 {
        1 << 63 | self.0
    }

    /// Returns whether a link refers to a copy, valid or not.
    #[inline]
    pub(crate) fn is_one([first, _]: [u32; 2]) -> bool {
        first & IS_COPY != 0
    }

    /// Returns the copy that a link refers to, or `None` if the link refers to a chain or to a copy
    /// that is no longer valid.
    pub(crate) fn from_link(link @ [first, second]: [u32; 2]) -> Option<Self> {
        let is_known = Self::is_one(link) && first != Self::FORGOTTEN;
        is_known.then(|| Self(u64::from(first & !IS_COPY) << 32 | u64::from(second)))
    }

    /// Returns the two halves of the link to the copy.
    pub(crate) fn link(self) -> [u32; 2] {
        [(self.0 >> 32) as u32 | IS_COPY, self.0 as u32]
    }

    /// Returns the index word that refers to the copy. `in_memory` is the index word of the item in
    /// memory.
    pub(crate) fn word(self, in_memory: IndexWord) -> IndexWord {
        // The frequency is 1, so that the next hit counts as the item's second hit.
        in_memory.at_location_on_flash(self.0).with_freq(1)
    }

    /// Returns whether the copy was written while its page had this sequence. The page has another
    /// sequence in each earlier or later use.
    pub(crate) fn is_of(self, sequence: Sequence) -> bool {
        self.0 >> LOCATION_BITS == sequence & SEQUENCE_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::index::word::{LARGE_SPAN, Pattern, hash_prefix};

    #[test]
    fn a_link_returns_its_copy() {
        let in_memory = IndexWord::new(Pattern::new(hash_prefix(u64::MAX), 63), 80, 3);
        for (flash_offset, span) in [(0, 0), ((1 << 37) - 1, 14), (77, 3)] {
            let word = in_memory.on_flash(flash_offset, span);
            for sequence in [1, SEQUENCE_MASK, SEQUENCE_MASK + 1, u64::MAX] {
                let copy = FlashCopy::of(word, sequence);
                let link = copy.link();
                assert!(FlashCopy::is_one(link) && link[0] != FlashCopy::FORGOTTEN);
                assert_eq!(FlashCopy::from_link(link), Some(copy));
                assert_eq!(copy.word(in_memory), word.with_freq(1));
                assert!(copy.is_of(sequence) && !copy.is_of(sequence.wrapping_add(1)));
            }
        }
        assert_eq!(FlashCopy::from_link([FlashCopy::FORGOTTEN, 7]), None);
        assert!(FlashCopy::is_one([FlashCopy::FORGOTTEN, 7]), "a link to a copy is not a chain");
        assert!(!FlashCopy::is_one([1 << 28, u32::MAX]), "a chain");
        assert_eq!(FlashCopy::from_chain(0), None);
        for large in [0, (1 << 37) - 1].map(|offset| in_memory.on_flash(offset, LARGE_SPAN)) {
            let copy = FlashCopy::of(large, u64::MAX);
            assert_eq!(FlashCopy::from_chain(copy.chain_word()), Some(copy));
            assert_eq!(copy.word(in_memory), large.with_freq(1));
        }
    }
}
