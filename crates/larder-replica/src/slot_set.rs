//! Sets of cluster slots.

use larder_protocol::{SLOTS, slot};
use std::fmt::{self, Display};
use std::str::FromStr;

const WORDS: usize = SLOTS as usize / 64;

/// A set of slots.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u64; WORDS]>);

impl Default for SlotSet {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl SlotSet {
    /// The length of [`SlotSet::to_bytes`] in bytes.
    pub const BYTES: usize = WORDS * 8;

    /// Returns the set of all slots.
    #[must_use]
    pub fn all() -> Self {
        Self(Box::new([u64::MAX; WORDS]))
    }

    /// Returns whether the set contains a slot.
    #[must_use]
    pub fn contains(&self, slot: u16) -> bool {
        let word = self.0.get(usize::from(slot / 64)).copied().unwrap_or_default();
        word >> (slot % 64) & 1 == 1
    }

    /// Returns whether the set contains the slot of a key.
    #[must_use]
    pub fn has_key(&self, key: &[u8]) -> bool {
        self.contains(slot(key))
    }

    /// Adds a slot. Ignores a number that is not below [`SLOTS`].
    pub fn insert(&mut self, slot: u16) {
        if let Some(word) = self.0.get_mut(usize::from(slot / 64)) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Adds all slots of another set.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&*other.0).for_each(|(word, other)| *word |= other);
    }

    /// Removes all slots of another set.
    pub fn remove(&mut self, other: &Self) {
        self.0.iter_mut().zip(&*other.0).for_each(|(word, other)| *word &= !other);
    }

    /// Returns the intersection with another set.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let mut common = self.clone();
        common.0.iter_mut().zip(&*other.0).for_each(|(word, other)| *word &= other);
        common
    }

    /// Returns whether the set is a superset of `other`.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        self.0.iter().zip(&*other.0).all(|(word, other)| other & !word == 0)
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the slots, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..SLOTS).filter(|slot| self.contains(*slot))
    }

    /// Returns the set as a bitmap with one bit per slot. Slot 0 is the lowest bit of the first
    /// byte.
    pub fn to_bytes(&self) -> impl Iterator<Item = u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Decodes [`SlotSet::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut set = Self::default();
        let (words, _) = bytes.as_chunks();
        set.0.iter_mut().zip(words).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        set
    }

    /// Removes and returns the `count` slots with the highest numbers.
    pub(crate) fn take_last(&mut self, count: usize) -> Self {
        let left = self.len().saturating_sub(count);
        let last: Self = self.iter().skip(left).collect();
        self.remove(&last);
        last
    }
}

impl FromIterator<u16> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

/// Writes the slots as ranges, such as `0-1023,2048`.
impl Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut slot, mut separator) = (0, "");
        while slot < SLOTS {
            let end = (slot..SLOTS).find(|slot| !self.contains(*slot)).unwrap_or(SLOTS);
            match end - slot {
                0 => (),
                1 => write!(f, "{separator}{slot}")?,
                _ => write!(f, "{separator}{slot}-{}", end - 1)?,
            }
            if end > slot {
                separator = ",";
            }
            slot = end + 1;
        }
        Ok(())
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// The error for text that is not a valid slot set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid slots: expected ranges of numbers below {SLOTS}, such as 0-1023,2048")]
pub struct SlotsError;

impl FromStr for SlotSet {
    type Err = SlotsError;

    fn from_str(text: &str) -> Result<Self, SlotsError> {
        let mut set = Self::default();
        for range in text.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse().ok().filter(|slot| *slot < SLOTS);
            let first: u16 = number(first).ok_or(SlotsError)?;
            let last = number(last).filter(|last| *last >= first).ok_or(SlotsError)?;
            (first..=last).for_each(|slot| set.insert(slot));
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_sets_round_trip_as_ranges_and_as_bytes() {
        for text in ["", "0", "0-4095", "0-1,3,63-64,4095", "7-8"] {
            let set: SlotSet = text.parse().unwrap();
            assert_eq!(set.to_string(), text);
            let bytes: Vec<u8> = set.to_bytes().collect();
            assert_eq!(SlotSet::from_bytes(bytes.as_slice().try_into().unwrap()), set);
            assert_eq!(set.iter().collect::<SlotSet>(), set);
        }
        for text in ["4096", "5-3", "x", "-", "1-", "0-4096"] {
            assert_eq!(text.parse::<SlotSet>(), Err(SlotsError), "{text}");
        }
    }
}
