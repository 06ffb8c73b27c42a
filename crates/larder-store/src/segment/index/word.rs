//! The index word: the location of an item, and its frequency.
//!
//! ```text
//! 63        50 49  48 47   46    41 40                    0
//! ┌───────────┬──────┬────┬────────┬───────────────────────┐
//! │ prefix    │ freq │  0 │ growth │ location, 8-byte units│   in memory; 0 is an empty slot
//! ├───────────┼──────┼────┼────────┼────────┬──────────────┤
//! │ prefix    │ freq │  1 │ growth │ span   │ flash offset │   on flash: see `flash::format`
//! └───────────┴──────┴────┴────────┴────────┴──────────────┘
//!                                   40    37 36           0
//! ```
//! The hash prefix is the highest 14 bits of the key's hash. Growth is six bits of the bucket hash
//! (see `buckets`) for the bucket that contains the word. The six bits are directly above the bits
//! that choose among the initial buckets. With these bits, the index can move a word without the
//! item's key, both to the word's other bucket and to a new bucket when the index grows. Bit 47 is
//! the tier.
#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

use crate::segment::sync::{AtomicU64, Ordering};

pub(crate) const LOCATION_BITS: u32 = 41;
const GROWTH_SHIFT: u32 = 41;
const TIER_SHIFT: u32 = 47;
const FREQ_SHIFT: u32 = 48;
const HASH_PREFIX_SHIFT: u32 = 50;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
const TIER: u64 = 1 << TIER_SHIFT;
/// The width in bits of a flash offset, which locates an item on flash (see `flash::format`).
pub(crate) const FLASH_OFFSET_BITS: u32 = 37;
const FLASH_OFFSET_MASK: u64 = (1 << FLASH_OFFSET_BITS) - 1;
/// The span that marks large items on flash. The flash offset of such an item contains its length.
pub(crate) const LARGE_SPAN: u8 = 15;
/// The bits of a word that must match a key: hash prefix, tier and growth.
const PATTERN_MASK: u64 = u64::MAX << HASH_PREFIX_SHIFT | TIER | GROWTH_MASK << GROWTH_SHIFT;
/// The number of growth bits.
pub(crate) const GROWTH_BITS: u32 = 6;
const GROWTH_MASK: u64 = (1 << GROWTH_BITS) - 1;

/// The maximum frequency. The simulator has a copy of this constant (`simulate/s3fifo.rs` of
/// `larder-capacity`).
pub(crate) const FREQ_MAX: u8 = 3;

/// The length in bytes of the largest region that locations can address.
pub(crate) const REGION_MAX: u64 = (1 << LOCATION_BITS) * 8;

/// An index word: the content of an index slot. Zero means that the slot is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexWord(pub(crate) u64);

/// The bits that identify a key's word in one of the key's two buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(u64);

impl Pattern {
    /// Returns the pattern for a key with this hash prefix, in a bucket whose hash has these growth
    /// bits.
    #[inline]
    pub(crate) fn new(hash_prefix: u16, growth: u8) -> Self {
        Self(u64::from(hash_prefix) << HASH_PREFIX_SHIFT | u64::from(growth) << GROWTH_SHIFT)
    }
}

impl IndexWord {
    pub(crate) const EMPTY: Self = Self(0);

    /// Returns the word for an item in memory at `offset`, a multiple of 8 other than 0.
    pub(crate) fn new(pattern: Pattern, offset: usize, freq: u8) -> Self {
        strict_assert!(offset.is_multiple_of(8) && offset > 0 && freq <= FREQ_MAX);
        let location = offset as u64 / 8;
        strict_assert!(location <= LOCATION_MASK);
        Self(pattern.0 | u64::from(freq) << FREQ_SHIFT | location)
    }

    /// Returns the word of the same key for its item on flash, with frequency 0.
    #[must_use]
    pub(crate) fn on_flash(self, flash_offset: u64, span: u8) -> Self {
        strict_assert!(flash_offset <= FLASH_OFFSET_MASK && span < 16);
        Self(self.0 & PATTERN_MASK | TIER | u64::from(span) << FLASH_OFFSET_BITS | flash_offset)
    }

    /// Returns the same word as [`IndexWord::on_flash`]. `location` has the form that
    /// [`IndexWord::location`] returns.
    #[must_use]
    pub(crate) fn at_location_on_flash(self, location: u64) -> Self {
        Self(self.0 & PATTERN_MASK | TIER | location & LOCATION_MASK)
    }

    #[inline]
    pub(crate) fn is_on_flash(self) -> bool {
        self.0 & TIER != 0
    }

    /// Returns the location of the item: its offset divided by 8, or on flash its span and flash
    /// offset.
    pub(crate) fn location(self) -> u64 {
        self.0 & LOCATION_MASK
    }

    /// Returns the flash offset of the item on flash; see `flash::format`.
    pub(crate) fn flash_offset(self) -> u64 {
        self.0 & FLASH_OFFSET_MASK
    }

    /// Returns the span: the class of the item's length on flash. See `flash::format`.
    pub(crate) fn span(self) -> u8 {
        (self.0 >> FLASH_OFFSET_BITS) as u8 & 15
    }

    /// Returns whether both words refer to the same item. Their buckets and frequencies may differ.
    pub(crate) fn is_same_item(self, other: Self) -> bool {
        let mask = u64::MAX << HASH_PREFIX_SHIFT | TIER | LOCATION_MASK;
        self.0 & mask == other.0 & mask
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// Returns whether the word refers to an item in memory that may have the key of this pattern.
    #[inline]
    pub(crate) fn matches(self, pattern: Pattern) -> bool {
        // No hash prefix is 0, so an empty word matches nothing.
        self.0 & PATTERN_MASK == pattern.0
    }

    /// Returns whether the word refers to an item in memory or on flash that may have the key of
    /// this pattern.
    #[inline]
    pub(crate) fn matches_in_any_tier(self, pattern: Pattern) -> bool {
        self.0 & PATTERN_MASK & !TIER == pattern.0
    }

    /// Returns whether the word refers to an item in memory whose key has this hash prefix.
    #[inline]
    pub(crate) fn is_in_memory_with(self, hash_prefix: u16) -> bool {
        let mask = u64::MAX << HASH_PREFIX_SHIFT | TIER;
        self.0 & mask == u64::from(hash_prefix) << HASH_PREFIX_SHIFT
    }

    /// Returns a hash with the word's prefix and with this bucket hash as its low half.
    pub(crate) fn hash_with(self, bucket_hash: u32) -> u64 {
        self.0 & (u64::MAX << HASH_PREFIX_SHIFT) | u64::from(bucket_hash)
    }

    #[inline]
    pub(crate) fn hash_prefix(self) -> u16 {
        (self.0 >> HASH_PREFIX_SHIFT) as u16
    }

    #[inline]
    pub(crate) fn growth(self) -> u8 {
        (self.0 >> GROWTH_SHIFT & GROWTH_MASK) as u8
    }

    /// Returns the same word for a bucket whose hash has these growth bits.
    #[must_use]
    pub(crate) fn with_growth(self, growth: u8) -> Self {
        let others = self.0 & !(GROWTH_MASK << GROWTH_SHIFT);
        Self(others | u64::from(growth) << GROWTH_SHIFT)
    }

    /// Returns the word of the same key for an item in memory at `offset`.
    #[must_use]
    pub(crate) fn with_offset(self, offset: usize, freq: u8) -> Self {
        Self::new(Pattern(self.0 & PATTERN_MASK & !TIER), offset, freq)
    }

    /// Returns the item's offset in the region, in bytes. The item is in memory.
    #[inline]
    pub(crate) fn offset(self) -> usize {
        usize::try_from((self.0 & LOCATION_MASK) * 8).expect("a region fits the address space")
    }

    #[inline]
    pub(crate) fn freq(self) -> u8 {
        (self.0 >> FREQ_SHIFT) as u8 & FREQ_MAX
    }

    #[must_use]
    pub(crate) fn with_freq(self, freq: u8) -> Self {
        Self(self.0 & !(u64::from(FREQ_MAX) << FREQ_SHIFT) | u64::from(freq) << FREQ_SHIFT)
    }
}

/// Returns the prefix of a hash: its highest 14 bits, but at least 1, so that it differs from the
/// bits of an empty word. The lowest bits of a hash choose the buckets.
#[inline]
pub(crate) fn hash_prefix(hash: u64) -> u16 {
    ((hash >> HASH_PREFIX_SHIFT) as u16).max(1)
}

/// Raises the frequency of a slot's word unless it is [`FREQ_MAX`]. If another thread changes the
/// word first, this hit is not counted. Returns true if the frequency was 0 and is 1 now.
#[inline]
pub(crate) fn count_hit(slot: &AtomicU64, word: IndexWord) -> bool {
    if word.freq() == FREQ_MAX {
        return false;
    }
    let raised = word.with_freq(word.freq() + 1);
    let counted = slot.compare_exchange(word.0, raised.0, Ordering::Relaxed, Ordering::Relaxed);
    word.freq() == 0 && counted.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_returns_its_fields() {
        let pattern = Pattern::new(hash_prefix(u64::MAX), 63);
        let word = IndexWord::new(pattern, 8 * 12345, 2);
        assert_eq!((word.offset(), word.freq()), (8 * 12345, 2));
        assert_eq!((word.hash_prefix(), word.growth()), (hash_prefix(u64::MAX), 63));
        assert!(word.matches(pattern) && !word.matches(Pattern::new(0, 63)));
        assert!(!word.matches(Pattern::new(hash_prefix(u64::MAX), 62)));
        assert_eq!(word.with_freq(0).freq(), 0);
        assert_eq!(word.with_freq(3).offset(), word.offset());
        let moved = word.with_growth(5).with_offset(80, 1);
        assert_eq!(moved, IndexWord::new(Pattern::new(hash_prefix(u64::MAX), 5), 80, 1));
    }

    #[test]
    fn a_slot_on_flash_returns_its_fields() {
        let pattern = Pattern::new(hash_prefix(u64::MAX), 41);
        let word = IndexWord::new(pattern, 80, 3).on_flash(FLASH_OFFSET_MASK, 15);
        assert_eq!((word.flash_offset(), word.span(), word.freq()), (FLASH_OFFSET_MASK, 15, 0));
        assert_eq!((word.hash_prefix(), word.growth()), (hash_prefix(u64::MAX), 41));
        assert!(word.is_on_flash() && !word.matches(pattern));
        assert!(
            word.matches_in_any_tier(pattern) && !word.is_in_memory_with(hash_prefix(u64::MAX))
        );
        assert!(word.is_same_item(word.with_freq(2).with_growth(0)));
        assert!(!word.is_same_item(word.on_flash(FLASH_OFFSET_MASK - 1, 15)));
        assert_eq!(word.with_offset(80, 1), IndexWord::new(pattern, 80, 1), "and back to memory");
    }

    #[test]
    fn an_empty_slot_matches_no_hash() {
        for hash in [0, u64::MAX >> 14, u64::MAX] {
            assert!(
                !IndexWord::EMPTY.matches_in_any_tier(Pattern::new(hash_prefix(hash), 0)),
                "{hash:x}"
            );
            assert!(!IndexWord::EMPTY.matches(Pattern::new(hash_prefix(hash), 0)), "{hash:x}");
        }
    }
}
