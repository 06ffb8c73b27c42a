//! Sets of the letters that can be meta flags.

/// The first letter that can be a flag.
const FIRST: u8 = b'A';
/// The number of byte values from `A` to `z`, including the symbols between `Z` and `a`.
pub(crate) const LETTERS: usize = (b'z' - FIRST + 1) as usize;

/// A set of letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Letters(u64);

impl Letters {
    pub(crate) const NONE: Self = Self(0);

    /// Returns the set with only this letter, or the empty set if the byte cannot be a flag.
    #[inline]
    pub(crate) const fn of(letter: u8) -> Self {
        let index = index(letter);
        Self(if index < 64 { 1 << index } else { 0 })
    }

    /// Returns whether the sets have a common letter.
    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union of both sets.
    #[inline]
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the letters of this set that are not in `other`.
    #[inline]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// Returns the index of a letter among the possible flags, or at least [`LETTERS`] for any other
/// byte.
#[inline]
pub(crate) const fn index(letter: u8) -> usize {
    letter.wrapping_sub(FIRST) as usize
}
