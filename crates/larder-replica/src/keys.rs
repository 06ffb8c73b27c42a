//! A set of keys. A sender collects the keys of the states that it will send next. A follower
//! collects the keys that it sends in a delta sync.

const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    start: u32,
    len: u16,
    is_sent: bool,
}

/// A set of keys in order of insertion. Each key has a flag that states whether the key is sent.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// A hash table with open addressing that maps keys to positions in `entries`. It is at most
    /// half full.
    table: Vec<u32>,
    /// The number of unsent keys.
    unsent_count: usize,
}

impl Keys {
    /// Adds a key, or marks a sent key as unsent again. Returns false if the set already contains
    /// the key as unsent, or if the key or the set would be too long: a key may have at most 2^16 -
    /// 1 bytes, and all keys together at most about 2^32 bytes.
    pub(crate) fn push(&mut self, key: &[u8], hash: u64) -> bool {
        if 2 * (self.entries.len() + 1) > self.table.len() {
            self.grow();
        }
        let index = self.find(key, hash);
        let Some(slot) = self.table.get_mut(index) else { return false };
        if let Some(entry) = self.entries.get_mut(*slot as usize) {
            self.unsent_count += usize::from(entry.is_sent);
            return std::mem::take(&mut entry.is_sent);
        }
        let (Ok(position), Ok(start), Ok(len)) = (
            u32::try_from(self.entries.len()),
            u32::try_from(self.bytes.len()),
            key.len().try_into(),
        ) else {
            return false;
        };
        *slot = position;
        self.entries.push(Entry { hash, start, len, is_sent: false });
        self.bytes.extend_from_slice(key);
        self.unsent_count += 1;
        true
    }

    /// Returns the slot of a key in the table, or the free slot in which to insert it.
    #[expect(clippy::cast_possible_truncation, reason = "the mask is below")]
    fn find(&self, key: &[u8], hash: u64) -> usize {
        let mask = self.table.len() - 1;
        let mut index = hash as usize & mask;
        while let Some(position) = self.table.get(index).filter(|position| **position != EMPTY) {
            let position = *position as usize;
            if self.entries.get(position).is_some_and(|entry| entry.hash == hash)
                && self.key(position) == key
            {
                break;
            }
            index = (index + 1) & mask;
        }
        index
    }

    #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 2^32")]
    fn grow(&mut self) {
        let len = (2 * self.table.len()).max(1024);
        self.table = vec![EMPTY; len];
        for position in 0..self.entries.len() {
            let Some(entry) = self.entries.get(position) else { continue };
            let mut index = entry.hash as usize & (len - 1);
            while self.table.get(index).is_some_and(|slot| *slot != EMPTY) {
                index = (index + 1) & (len - 1);
            }
            if let Some(slot) = self.table.get_mut(index) {
                *slot = position as u32;
            }
        }
    }

    /// Returns all keys, sent or not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|position| self.key(position))
    }

    /// Returns the number of keys, sent or not.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the set contains no unsent keys.
    pub(crate) fn is_done(&self) -> bool {
        self.unsent_count == 0
    }

    /// Returns the key at a position.
    pub(crate) fn key(&self, position: usize) -> &[u8] {
        let entry = self.entries.get(position);
        let range =
            entry.map(|entry| entry.start as usize..entry.start as usize + usize::from(entry.len));
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    /// Returns the positions and hashes of the unsent keys.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = (usize, u64)> {
        let entries = self.entries.iter().enumerate();
        entries.filter(|(_, entry)| !entry.is_sent).map(|(position, entry)| (position, entry.hash))
    }

    /// Marks a key as sent.
    pub(crate) fn mark_sent(&mut self, position: usize) {
        if let Some(entry) = self.entries.get_mut(position)
            && !std::mem::replace(&mut entry.is_sent, true)
        {
            self.unsent_count -= 1;
        }
    }

    /// Removes all keys. Keeps the allocated memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.table.fill(EMPTY);
        self.unsent_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_equal_hashes_are_distinct_and_each_is_kept_once() {
        let mut keys = Keys::default();
        for round in 0..2 {
            for number in 0..3000_u32 {
                let is_new = keys.push(&number.to_le_bytes(), (number % 100).into());
                assert_eq!(is_new, round == 0, "{number}");
            }
        }
        assert_eq!((keys.len(), keys.is_done()), (3000, false));
        let unsent: Vec<usize> = keys.unsent().map(|(position, _)| position).collect();
        for position in unsent {
            assert_eq!(keys.key(position), u32::try_from(position).unwrap().to_le_bytes());
            keys.mark_sent(position);
        }
        assert!(keys.is_done());
        assert!(keys.push(&7_u32.to_le_bytes(), 7), "it has changed again");
        assert_eq!(keys.unsent().collect::<Vec<_>>(), [(7, 7)]);
        keys.clear();
        assert!(keys.is_done() && keys.push(b"a", 1));
    }
}
