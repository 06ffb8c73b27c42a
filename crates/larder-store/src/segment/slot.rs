//! The index word: one item's place and what the index knows of it.
//!
//! ```text
//! 63        50 49  48 47   46   41 40                    0
//! ┌───────────┬──────┬────┬───────┬───────────────────────┐
//! │ tag       │ freq │tier│ spare │ location, 8-byte units│   0 is an empty slot
//! └───────────┴──────┴────┴───────┴───────────────────────┘
//! ```
//! Tier is 0, memory, until there is flash. The spare bits are for growth without reading items.
#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

const LOCATION_BITS: u32 = 41;
const FREQ_SHIFT: u32 = 48;
const TAG_SHIFT: u32 = 50;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;

/// The most a frequency counts to.
pub(super) const FREQ_MAX: u8 = 3;

/// The largest region that locations reach, in bytes.
pub(super) const REGION_MAX: u64 = (1 << LOCATION_BITS) * 8;

/// A slot's content. Zero is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u64);

impl Slot {
    pub(super) const EMPTY: Self = Self(0);

    /// An item at `offset` (a multiple of 8, never 0) whose key hashes to `hash`.
    pub(super) fn new(hash: u64, offset: usize, freq: u8) -> Self {
        debug_assert!(offset.is_multiple_of(8) && offset > 0 && freq <= FREQ_MAX);
        let location = offset as u64 / 8;
        debug_assert!(location <= LOCATION_MASK);
        Self(tag(hash) << TAG_SHIFT | u64::from(freq) << FREQ_SHIFT | location)
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// Whether its key may hash to `hash`.
    #[inline]
    pub(super) fn may_hold(self, hash: u64) -> bool {
        self.0 >> TAG_SHIFT == tag(hash) && !self.is_empty()
    }

    /// The item's byte offset in the region.
    #[inline]
    pub(super) fn offset(self) -> usize {
        usize::try_from((self.0 & LOCATION_MASK) * 8).expect("a region fits the address space")
    }

    #[inline]
    pub(super) fn freq(self) -> u8 {
        (self.0 >> FREQ_SHIFT) as u8 & FREQ_MAX
    }

    #[must_use]
    pub(super) fn with_freq(self, freq: u8) -> Self {
        Self(self.0 & !(u64::from(FREQ_MAX) << FREQ_SHIFT) | u64::from(freq) << FREQ_SHIFT)
    }
}

/// The top bits of the hash; buckets are chosen by the bottom ones.
#[inline]
fn tag(hash: u64) -> u64 {
    hash >> TAG_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_returns_what_went_in() {
        let slot = Slot::new(u64::MAX, 8 * 12345, 2);
        assert_eq!((slot.offset(), slot.freq()), (8 * 12345, 2));
        assert!(slot.may_hold(u64::MAX) && !slot.may_hold(0));
        assert_eq!(slot.with_freq(0).freq(), 0);
        assert_eq!(slot.with_freq(3).offset(), slot.offset());
    }

    #[test]
    fn an_empty_slot_holds_nothing() {
        assert!(!Slot::EMPTY.may_hold(0));
    }
}
