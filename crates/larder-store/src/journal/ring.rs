//! A ring of entries with one writer and any number of readers. They never wait for each other: a
//! reader that is too slow detects that it was overrun.
//!
//! Offsets are counted in words and only grow. An entry is a header and the bytes of its key:
//!
//! ```text
//! header  63    56 55       40 39                0
//!         ┌───────┬───────────┬──────────────────┐
//!         │ kind  │ key length│ milliseconds     │
//!         └───────┴───────────┴──────────────────┘
//! ```
//! The writer announces the end of an entry, writes the entry, and then publishes it. A reader
//! copies an entry, and afterwards checks whether its words were announced for a later entry: a
//! sequence lock whose sequence is the offset (Boehm, "Can seqlocks get along with programming
//! language memory models?", 2012).
#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(shuttle)]
use shuttle::sync::atomic::{AtomicU64, fence};
#[cfg(not(loom))]
use std::sync::atomic::Ordering;
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::{AtomicU64, fence};

use crate::KEY_LEN_MAX;
use std::sync::Arc;

const WORD: usize = size_of::<u64>();
const KIND_SHIFT: u32 = 56;
const LEN_SHIFT: u32 = 40;
const LEN_MASK: u64 = (1 << (KIND_SHIFT - LEN_SHIFT)) - 1;
/// Times are 40 bits of milliseconds, so ages of up to 17 years are exact.
const MILLIS_MASK: u64 = (1 << LEN_SHIFT) - 1;

/// The length of the longest entry, in words.
const ENTRY_WORDS_MAX: usize = 1 + KEY_LEN_MAX.div_ceil(WORD);

/// The kind of a change. Determines whether a reply waits for acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The item was removed, marked as stale, left without a value, or expired immediately: no
    /// lookup may find the old item.
    Removal,
    /// Any other change.
    Other,
}

/// An entry of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'k> {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The key that was changed.
    pub key: &'k [u8],
    /// The time of the change, in milliseconds on the writer's clock, modulo 2^40.
    pub millis: u64,
}

impl Entry<'_> {
    /// Returns the time in milliseconds from the change to `now_millis` on the writer's clock.
    /// Returns 0 if `now_millis` is slightly earlier.
    #[must_use]
    pub fn age(&self, now_millis: u64) -> u64 {
        age(self.millis, now_millis)
    }
}

/// Returns the time in milliseconds from an entry's time to `now_millis`. Returns 0 if `now_millis`
/// is earlier, by less than 17 years.
pub(super) fn age(millis: u64, now_millis: u64) -> u64 {
    let age = now_millis.wrapping_sub(millis) & MILLIS_MASK;
    if age > MILLIS_MASK / 2 { 0 } else { age }
}

/// The error for a reader that the writer overtook: entries were overwritten before the reader read
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// The entries of one writer.
#[derive(Debug)]
pub struct Ring {
    words: Box<[AtomicU64]>,
    /// Words below this offset have been written, or will be soon.
    announced: AtomicU64,
    /// Words below this offset can be read.
    published: AtomicU64,
    /// The number of entries that were written.
    entries: AtomicU64,
}

impl Ring {
    fn word(&self, offset: u64) -> &AtomicU64 {
        let mask = self.words.len() - 1;
        &self.words[offset as usize & mask]
    }

    /// Returns whether the word at this offset may have been overwritten.
    fn is_overrun(&self, offset: u64) -> bool {
        self.announced.load(Ordering::Relaxed).wrapping_sub(offset) > self.words.len() as u64
    }

    /// Returns the offset of the next entry to be written, in words.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Returns the number of entries that were written.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }
}

/// The only writer of a ring.
#[derive(Debug)]
pub struct Writer {
    ring: Arc<Ring>,
    /// The published offset.
    at: u64,
}

impl Writer {
    /// Returns the writer of a new ring of `bytes` bytes, rounded down to a power of two. The ring
    /// has at least 2 KiB, which is enough for the largest entry.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let words = (bytes / WORD).max(2 * ENTRY_WORDS_MAX);
        Self::with_words(1 << words.ilog2())
    }

    /// Returns a writer that continues a ring after its previous writer was dropped.
    pub(super) fn continuing(ring: Arc<Ring>) -> Self {
        let at = ring.end();
        Self { ring, at }
    }

    fn with_words(words: usize) -> Self {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        let zero = || AtomicU64::new(0);
        let ring = Ring { words, announced: zero(), published: zero(), entries: zero() };
        Self { ring: Arc::new(ring), at: 0 }
    }

    /// Returns the ring, for readers.
    #[must_use]
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Returns the ring's length in words.
    pub(super) fn capacity(&self) -> u64 {
        self.ring.words.len() as u64
    }

    /// Returns the end of the last entry, as an offset in words.
    pub(super) fn end(&self) -> u64 {
        self.at
    }

    /// Appends an entry. The key has at most [`KEY_LEN_MAX`] bytes.
    pub fn append(&mut self, kind: ChangeKind, key: &[u8], millis: u64) {
        debug_assert!(key.len() <= KEY_LEN_MAX, "keys of items are not longer");
        let ring = &*self.ring;
        let end = self.at + 1 + key.len().div_ceil(WORD) as u64;
        ring.announced.store(end, Ordering::Relaxed);
        // A thread that reads one of the words stored below also sees that they were announced.
        fence(Ordering::Release);
        let header =
            (kind as u64) << KIND_SHIFT | (key.len() as u64) << LEN_SHIFT | (millis & MILLIS_MASK);
        ring.word(self.at).store(header, Ordering::Relaxed);
        for (offset, bytes) in (self.at + 1..).zip(key.chunks(WORD)) {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            ring.word(offset).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        ring.entries.store(ring.entries.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        ring.published.store(end, Ordering::Release);
        self.at = end;
    }
}

/// A reader of a ring, with its position.
#[derive(Debug)]
pub struct Reader {
    ring: Arc<Ring>,
    at: u64,
    /// The number of entries before `at`. It is approximate if the writer was writing while the
    /// reader was made.
    passed: u64,
    key: Vec<u8>,
}

impl Reader {
    /// Returns a reader from the start of the ring.
    #[must_use]
    pub fn at_start(ring: &Arc<Ring>) -> Self {
        Self { ring: Arc::clone(ring), at: 0, passed: 0, key: Vec::new() }
    }

    /// Returns a reader of the entries that are written from now on.
    #[must_use]
    pub fn at_end(ring: &Arc<Ring>) -> Self {
        // Entries are counted before they are published. So at most one of the entries that this
        // reader will read is already counted: the entry that is being written now.
        let passed = ring.entries();
        Self { ring: Arc::clone(ring), at: ring.end(), passed, key: Vec::new() }
    }

    /// Returns a reader that starts at `offset`, the offset of another reader of the ring. Reads
    /// all later entries once, to count them.
    ///
    /// # Errors
    /// [`Overrun`]: the entry was overwritten, or never existed.
    pub fn at(ring: &Arc<Ring>, offset: u64) -> Result<Self, Overrun> {
        if offset > ring.end() {
            return Err(Overrun);
        }
        let reader = |at, passed| Self { ring: Arc::clone(ring), at, passed, key: Vec::new() };
        // The number of earlier entries is not known, so this function counts the later entries
        // instead.
        let (mut ahead, mut counted) = (reader(offset, 0), 0);
        let entries = ring.entries();
        while ahead.take()?.is_some() {
            counted += 1;
        }
        Ok(reader(offset, entries.saturating_sub(counted)))
    }

    /// Returns the offset of the next entry in words.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the number of bytes that are still to be read.
    #[must_use]
    pub fn lag_bytes(&self) -> u64 {
        self.ring.end().saturating_sub(self.at) * WORD as u64
    }

    /// Returns the number of entries that are still to be read. While the writer writes, the number
    /// may be one too high or too low.
    #[must_use]
    pub fn lag_entries(&self) -> u64 {
        let is_at_end = self.at == self.ring.end();
        if is_at_end { 0 } else { self.ring.entries().saturating_sub(self.passed).max(1) }
    }

    /// Returns the age of the next entry in milliseconds, or `None` if there is no next entry or it
    /// was overwritten.
    #[must_use]
    pub fn next_age(&self, now_millis: u64) -> Option<u64> {
        let ring = &*self.ring;
        if self.at >= ring.published.load(Ordering::Acquire) {
            return None;
        }
        let header = ring.word(self.at).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (!ring.is_overrun(self.at)).then(|| age(header & MILLIS_MASK, now_millis))
    }

    /// Takes the next entry, if there is one.
    ///
    /// # Errors
    /// [`Overrun`]: the entry was overwritten. All later entries up to the writer's position may be
    /// overwritten, too.
    pub fn take(&mut self) -> Result<Option<Entry<'_>>, Overrun> {
        let ring = &*self.ring;
        let end = ring.published.load(Ordering::Acquire);
        if self.at >= end {
            return Ok(None);
        }
        let header = ring.word(self.at).load(Ordering::Relaxed);
        let len = (header >> LEN_SHIFT & LEN_MASK) as usize;
        // Ignore an impossible length: an overwritten header contains arbitrary bits.
        let words = if len > KEY_LEN_MAX { 0 } else { len.div_ceil(WORD) as u64 };
        self.key.clear();
        for offset in self.at + 1..=self.at + words {
            let word = ring.word(offset).load(Ordering::Relaxed);
            self.key.extend_from_slice(&word.to_le_bytes());
        }
        fence(Ordering::Acquire);
        // A reader that started in the middle of an entry has taken an arbitrary word for a header.
        if ring.is_overrun(self.at) || self.at + words >= end {
            return Err(Overrun);
        }
        self.key.truncate(len);
        self.at += 1 + words;
        self.passed += 1;
        let kind = if header >> KIND_SHIFT == ChangeKind::Removal as u64 {
            ChangeKind::Removal
        } else {
            ChangeKind::Other
        };
        Ok(Some(Entry { kind, key: &self.key, millis: header & MILLIS_MASK }))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any order of appends and reads, a reader sees a contiguous part of the written
        /// entries, in order, until it gets an overrun.
        #[test]
        fn a_reader_sees_all_entries_or_an_overrun(
            keys in prop::collection::vec((1_usize..=KEY_LEN_MAX, 0_usize..8), 1..400)
        ) {
            let mut writer = Writer::new(0);
            let mut reader = Reader::at_start(writer.ring());
            let (mut written, mut read) = (0_u64, 0_u64);
            for (len, reads) in keys {
                let key: Vec<u8> = (0..len).map(|i| (written as usize + i) as u8).collect();
                writer.append(ChangeKind::Other, &key, written);
                written += 1;
                for _ in 0..reads {
                    match reader.take() {
                        Ok(Some(entry)) => {
                            prop_assert_eq!(entry.millis, read);
                            let first = entry.key[0];
                            prop_assert_eq!(first, read as u8);
                            prop_assert!(entry.key.iter().zip(0..).all(|(byte, i)| *byte == first.wrapping_add(i as u8)));
                            read += 1;
                        }
                        Ok(None) => prop_assert_eq!(read, written),
                        Err(Overrun) => {
                            prop_assert!(written - read >= 2, "at least two of the largest fit");
                            reader = Reader::at_end(writer.ring());
                            read = written;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_reader_can_return_to_an_offset_that_was_not_overwritten() {
        let mut writer = Writer::new(0);
        writer.append(ChangeKind::Removal, b"a", 1);
        let ring = Arc::clone(writer.ring());
        let offset = Reader::at_end(&ring).offset();
        writer.append(ChangeKind::Other, b"b", 2);
        let mut again = Reader::at(&ring, offset).unwrap();
        assert_eq!((again.lag_entries(), again.lag_bytes()), (1, 16));
        assert_eq!(again.take(), Ok(Some(Entry { kind: ChangeKind::Other, key: b"b", millis: 2 })));
        assert_eq!((again.lag_entries(), again.lag_bytes()), (0, 0));
        assert_eq!(Reader::at(&ring, 1 << 40).unwrap_err(), Overrun);
        while !ring.is_overrun(offset) {
            writer.append(ChangeKind::Other, &[7; KEY_LEN_MAX], 3);
        }
        assert_eq!(Reader::at(&ring, offset).unwrap_err(), Overrun);
        assert_eq!(Reader::at_start(&ring).take(), Err(Overrun));
    }

    /// An offset may come from a malicious peer.
    #[test]
    fn reading_from_any_offset_ends() {
        let mut writer = Writer::new(0);
        for number in 0..200_u8 {
            writer.append(ChangeKind::Other, &[0xff; 40], u64::MAX - u64::from(number));
        }
        let ring = Arc::clone(writer.ring());
        for offset in 0..=ring.end() + 1 {
            if let Ok(mut reader) = Reader::at(&ring, offset) {
                while let Ok(Some(entry)) = reader.take() {
                    assert!(entry.key.len() <= KEY_LEN_MAX);
                }
            }
        }
    }

    #[test]
    fn ages_are_right_when_the_clock_wraps() {
        assert_eq!(age(MILLIS_MASK - 1, MILLIS_MASK + 10), 11);
        assert_eq!(age(10, 9), 0, "another thread has read the clock later");
        assert_eq!(age(10, 15), 5);
    }
}

#[cfg(all(test, any(loom, shuttle)))]
pub(super) mod model {
    use super::*;

    /// Returns a model of a writer that constantly overtakes its reader. Checks that the reader
    /// takes only entries that were written.
    pub(crate) fn a_reader_takes_no_torn_entry(
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> Box<dyn FnOnce()>,
    ) {
        let mut writer = Writer::with_words(2);
        let mut reader = Reader::at_start(writer.ring());
        let join = spawn(Box::new(move || {
            for number in 1..=2_u8 {
                writer.append(ChangeKind::Other, &[number], number.into());
            }
        }));
        let mut last = 0;
        for _ in 0..2 {
            match reader.take() {
                Ok(Some(entry)) => {
                    assert_eq!(entry.key, [entry.millis as u8], "the words belong to one entry");
                    assert_eq!(entry.millis, last + 1);
                    last += 1;
                }
                Ok(None) => (),
                Err(Overrun) => break,
            }
        }
        join();
    }
}
