//! Size classes: one for every factor of 4 in item size.

/// A class of items whose sizes differ by less than a factor of 4. Class 0 starts at 16 bytes, and
/// also contains smaller items. The last class also contains items of 1 GiB or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

/// log2 of the smallest size of class 0.
const FIRST_BITS: u32 = 4;
/// The number of the last class.
const LAST: u8 = 12;
/// log2 of the factor between one class and the next.
const STEP_BITS: u32 = 2;

impl SizeClass {
    pub(super) const SMALLEST: Self = Self(0);

    /// The number of classes. They cover sizes from 16 bytes to 1 GiB.
    pub const COUNT: usize = LAST as usize + 1;

    /// Returns the class of an item whose header, key, value and chain together have `bytes` bytes.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "at most 12")]
    pub fn of(bytes: u64) -> Self {
        let class = ((bytes | 1 << FIRST_BITS).ilog2() - FIRST_BITS) / STEP_BITS;
        Self(class.min(u32::from(LAST)) as u8)
    }

    /// Returns the class with a number from a segment table. A number above the last class gives
    /// the last class.
    #[must_use]
    pub fn from_index(index: u8) -> Self {
        Self(index.min(LAST))
    }

    /// Returns the class's number, less than [`SizeClass::COUNT`].
    #[must_use]
    pub fn index(self) -> u8 {
        self.0
    }

    /// Returns the difference between the numbers of two classes.
    #[must_use]
    pub fn distance(self, other: Self) -> u8 {
        self.0.abs_diff(other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_spans_a_factor_of_4() {
        let cases = [
            (0, 0),
            (16, 0),
            (63, 0),
            (64, 1),
            (255, 1),
            (256, 2),
            (1 << 20, 8),
            ((1 << 30) - 1, 12),
            (1 << 30, 12),
            (u64::MAX, 12),
        ];
        for (bytes, class) in cases {
            assert_eq!(SizeClass::of(bytes).index(), class, "{bytes} bytes");
        }
    }

    #[test]
    fn a_class_is_read_back_from_its_number() {
        (0..13).for_each(|index| assert_eq!(SizeClass::from_index(index).index(), index));
        assert_eq!(SizeClass::from_index(200).index(), 12);
    }
}
