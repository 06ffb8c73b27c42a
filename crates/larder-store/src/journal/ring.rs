//! A ring of entries with one writer and any number of readers, none of which waits for another: a reader that
//! is too slow finds out that it was overrun.
//!
//! Offsets are counted in words and only grow. An entry is a header and the bytes of its key:
//!
//! ```text
//! header  63    56 55       40 39                0
//!         ┌───────┬───────────┬──────────────────┐
//!         │ kind  │ key length│ milliseconds     │
//!         └───────┴───────────┴──────────────────┘
//! ```
//! The writer announces how far it is going to write, writes, and then publishes. A reader copies an entry, and
//! looks afterwards whether the place of the entry was announced for a later one: a sequence lock whose sequence
//! is the offset (Boehm, "Can seqlocks get along with programming language memory models?", 2012).
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
/// Times are compared within 34 years.
const MILLIS_MASK: u64 = (1 << LEN_SHIFT) - 1;

/// The words of the largest entry.
const ENTRY_WORDS_MAX: usize = 1 + KEY_LEN_MAX.div_ceil(WORD);

/// What a change did, as far as it matters to those who wait for it to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The item was removed, marked as stale, or left without a value: nobody may find it as it was.
    Removal,
    /// Any other change.
    Other,
}

/// One entry, as a reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'k> {
    /// What happened.
    pub kind: ChangeKind,
    /// The key that was changed.
    pub key: &'k [u8],
    /// When, in milliseconds on the writer's clock, modulo 2^40.
    pub millis: u64,
}

impl Entry<'_> {
    /// The milliseconds from the change to `now`.
    #[must_use]
    pub fn age(&self, now_millis: u64) -> u64 {
        age(self.millis, now_millis)
    }
}

/// The milliseconds from the time in an entry to `now`. A clock that is a little behind gives 0.
pub(super) fn age(millis: u64, now_millis: u64) -> u64 {
    let age = now_millis.wrapping_sub(millis) & MILLIS_MASK;
    if age > MILLIS_MASK / 2 { 0 } else { age }
}

/// The writer was faster than this reader: entries that it has not read are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// The entries of one writer.
#[derive(Debug)]
pub struct Ring {
    words: Box<[AtomicU64]>,
    /// Words below this offset are written, or about to be.
    announced: AtomicU64,
    /// Words below this offset can be read.
    published: AtomicU64,
    /// How many entries were written.
    entries: AtomicU64,
}

impl Ring {
    fn word(&self, offset: u64) -> &AtomicU64 {
        let mask = self.words.len() - 1;
        &self.words[offset as usize & mask]
    }

    /// Whether what begins at this offset may have been written over.
    fn is_overrun(&self, offset: u64) -> bool {
        self.announced.load(Ordering::Relaxed).wrapping_sub(offset) > self.words.len() as u64
    }

    /// Where the next entry will be.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// How many entries were written.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }
}

/// The only writer of a ring.
#[derive(Debug)]
pub struct Writer {
    ring: Arc<Ring>,
    /// What is published.
    at: u64,
}

impl Writer {
    /// The writer of a new ring of up to this many bytes, and at least what two of the largest entries need.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let words = (bytes / WORD).max(2 * ENTRY_WORDS_MAX);
        Self::with_words(1 << words.ilog2())
    }

    /// Continues a ring whose writer is gone.
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

    /// The ring, for readers.
    #[must_use]
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// How many words there are for entries.
    pub(super) fn capacity(&self) -> u64 {
        self.ring.words.len() as u64
    }

    /// Where the last entry ends.
    pub(super) fn end(&self) -> u64 {
        self.at
    }

    /// Appends an entry. The key has [`KEY_LEN_MAX`] bytes at most.
    pub fn append(&mut self, kind: ChangeKind, key: &[u8], millis: u64) {
        debug_assert!(key.len() <= KEY_LEN_MAX, "no item has such a key");
        let ring = &*self.ring;
        let end = self.at + 1 + key.len().div_ceil(WORD) as u64;
        ring.announced.store(end, Ordering::Relaxed);
        // Whoever reads one of the words that follow also sees that they were announced.
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

/// A place in a ring from which entries are read.
#[derive(Debug)]
pub struct Reader {
    ring: Arc<Ring>,
    at: u64,
    /// How many entries of the ring were passed.
    passed: u64,
    key: Vec<u8>,
}

impl Reader {
    /// Reads from the beginning.
    #[must_use]
    pub fn at_start(ring: &Arc<Ring>) -> Self {
        Self { ring: Arc::clone(ring), at: 0, passed: 0, key: Vec::new() }
    }

    /// Reads what is written from now on.
    #[must_use]
    pub fn at_end(ring: &Arc<Ring>) -> Self {
        // Entries are counted before they are published, so none is counted that is still to be read, but for
        // one that is written at this moment.
        let passed = ring.entries();
        Self { ring: Arc::clone(ring), at: ring.end(), passed, key: Vec::new() }
    }

    /// Reads from an offset that another reader of the ring was at.
    ///
    /// # Errors
    /// [`Overrun`]: what was there is gone, or has never been there.
    pub fn at(ring: &Arc<Ring>, offset: u64) -> Result<Self, Overrun> {
        if offset > ring.end() {
            return Err(Overrun);
        }
        let reader = |at, passed| Self { ring: Arc::clone(ring), at, passed, key: Vec::new() };
        // What is still to be read is counted, as nobody knows how many entries came before.
        let (mut ahead, mut counted) = (reader(offset, 0), 0);
        let entries = ring.entries();
        while ahead.take()?.is_some() {
            counted += 1;
        }
        Ok(reader(offset, entries.saturating_sub(counted)))
    }

    /// Where the next entry is, in words.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Bytes that are still to be read.
    #[must_use]
    pub fn lag_bytes(&self) -> u64 {
        self.ring.end().saturating_sub(self.at) * WORD as u64
    }

    /// Entries that are still to be read; one more or less while the writer writes.
    #[must_use]
    pub fn lag_entries(&self) -> u64 {
        let is_at_end = self.at == self.ring.end();
        if is_at_end { 0 } else { self.ring.entries().saturating_sub(self.passed).max(1) }
    }

    /// The milliseconds from when the next entry was written, if there is one that was not written over.
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
    /// [`Overrun`]: it is gone, and all up to where the writer is now may be.
    pub fn take(&mut self) -> Result<Option<Entry<'_>>, Overrun> {
        let ring = &*self.ring;
        let end = ring.published.load(Ordering::Acquire);
        if self.at >= end {
            return Ok(None);
        }
        let header = ring.word(self.at).load(Ordering::Relaxed);
        let len = (header >> LEN_SHIFT & LEN_MASK) as usize;
        // What is read of a header that was written over makes no sense.
        let words = if len > KEY_LEN_MAX { 0 } else { len.div_ceil(WORD) as u64 };
        self.key.clear();
        for offset in self.at + 1..=self.at + words {
            let word = ring.word(offset).load(Ordering::Relaxed);
            self.key.extend_from_slice(&word.to_le_bytes());
        }
        fence(Ordering::Acquire);
        // A reader that began in the middle of an entry has read nonsense.
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
        /// Whatever is appended and however it is read: a reader sees a part of what was written, in order and
        /// without a gap, until it is told that it was overrun.
        #[test]
        fn a_reader_sees_all_or_is_told(
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
    fn an_offset_can_be_gone_back_to_while_it_is_there() {
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

    /// An offset may come from a peer that makes it up.
    #[test]
    fn any_offset_comes_to_an_end() {
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
    fn ages_are_right_where_the_clock_wraps() {
        assert_eq!(age(MILLIS_MASK - 1, MILLIS_MASK + 10), 11);
        assert_eq!(age(10, 9), 0, "another thread has read the clock later");
        assert_eq!(age(10, 15), 5);
    }
}

#[cfg(all(test, any(loom, shuttle)))]
pub(super) mod model {
    use super::*;

    /// A writer that overtakes its reader all the time: what the reader takes is what was written.
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
                    assert_eq!(entry.key, [entry.millis as u8], "one entry's words");
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
