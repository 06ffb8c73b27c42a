//! Tags: names by which items are invalidated together.
//!
//! An item has a word for each of its tags, before its key. The word contains the tag's position in
//! a table, and the tag's generation when the item was stored. If the table's word at that position
//! contains another generation now, the item is flushed. So dropping a tag takes one addition,
//! however many items have it. The memory of these items is reused when they are evicted or found
//! by maintenance.
//!
//! ```text
//! a word of the table                                 a word of an item
//! 63          42 41  40 39           0                63      40 39           0
//! ┌─────────────┬──────┬──────────────┐               ┌─────────┬──────────────┐
//! │ fingerprint │ used │ generation   │               │ position│ generation   │
//! └─────────────┴──────┴──────────────┘               └─────────┴──────────────┘
//! ```
//! The table is made for the first tag, in segments of its own. The number of these segments is a
//! power of two. The table takes at most a 64th of the limit and at most 16 MiB, but at least one
//! segment. The hash of a tag selects two buckets of eight words. The tag is in the bucket that was
//! emptier when it was added. If all sixteen words are in use, a new tag displaces the least used
//! tag among them, and takes the next generation of its word. So the items of a displaced tag are
//! flushed as if the tag had been dropped: too early, but never too late. Dropping a tag may also
//! flush the items of another tag with a common bucket and the same fingerprint. In practice
//! generations never wrap: 40 bits last for 34 years at a thousand drops a second.
//!
//! Two threads may add the same tag at the same time, each in a different word. A drop therefore
//! changes every word of the tag.
#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

use super::cache::shared::Shared;
use super::handle::state::Handle;
use super::item::record::Record;
use super::memory::layout::TAG_BUCKET_LEN;
use super::memory::table::Table;
use super::sync::{AtomicU64, Ordering, wait_for_others};
use crate::{ItemChange, Refusal, Tag};

const BUCKET_WORDS: usize = TAG_BUCKET_LEN / size_of::<u64>();
/// The maximum length of the table in bytes is the limit divided by `TABLE_SHARE`, and at most
/// `TABLE_LEN_MAX`. But the table has at least one segment.
const TABLE_SHARE: usize = 64;
const TABLE_LEN_MAX: usize = 16 << 20;

/// The maximum number of waits for another handle that makes the table or grows the index: about a
/// second in all.
const WAITS_MAX: u32 = 10_000;

const GENERATION_BITS: u32 = 40;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
const USED_SHIFT: u32 = GENERATION_BITS;
const USED_MAX: u64 = 3;
const FINGERPRINT_SHIFT: u32 = 42;

/// A word of the table; 0 if it contains no tag.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    fn new(fingerprint: u64, used: u64, generation: u64) -> Self {
        let generation = generation & GENERATION_MASK;
        Self(fingerprint << FINGERPRINT_SHIFT | used << USED_SHIFT | generation)
    }

    fn fingerprint(self) -> u64 {
        self.0 >> FINGERPRINT_SHIFT
    }

    fn used(self) -> u64 {
        self.0 >> USED_SHIFT & USED_MAX
    }

    fn generation(self) -> u64 {
        self.0 & GENERATION_MASK
    }

    fn with_used(self, used: u64) -> Self {
        Self::new(self.fingerprint(), used, self.generation())
    }
}

impl Tag {
    fn new(position: usize, generation: u64) -> Self {
        Self((position as u64) << GENERATION_BITS | generation)
    }

    fn position(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize
    }

    fn generation(self) -> u64 {
        self.0 & GENERATION_MASK
    }
}

/// The two buckets that may contain a tag's word, and the tag's fingerprint in that word.
struct Candidates {
    buckets: [usize; 2],
    fingerprint: u64,
}

impl Candidates {
    fn of(hash: u64, buckets: usize) -> Self {
        let mask = buckets - 1;
        // The table has at most 2^18 buckets, so these bits do not overlap the
        // fingerprint's bits.
        let buckets = [hash as usize & mask, (hash >> 20) as usize & mask];
        Self { buckets, fingerprint: hash >> FINGERPRINT_SHIFT }
    }

    fn has(&self, entry: Entry) -> bool {
        entry.0 != 0 && entry.fingerprint() == self.fingerprint
    }
}

fn load_entry((position, word): (usize, &AtomicU64)) -> (usize, Entry) {
    (position, Entry(word.load(Ordering::Acquire)))
}

impl Table {
    /// Returns the number of buckets in the tag table, or 0 before the first tag.
    pub(crate) fn tag_buckets(&self) -> usize {
        self.header_page().tags.buckets.load(Ordering::Acquire) as usize
    }

    /// Returns the tag table's length in bytes.
    pub(crate) fn tags_len(&self) -> usize {
        self.tag_buckets() * TAG_BUCKET_LEN
    }

    /// Returns the current generation in the word at this position, or 0 if the table has no such
    /// position.
    fn tag_generation(&self, position: usize) -> u64 {
        let (bucket, word) = (position / BUCKET_WORDS, position % BUCKET_WORDS);
        if bucket >= self.tag_buckets() {
            return 0;
        }
        Entry(self.tag_bucket(bucket)[word].load(Ordering::Acquire)).generation()
    }

    /// Returns whether an item with these tags was flushed, because one of them was dropped or
    /// displaced.
    pub(crate) fn has_dropped(&self, tags: &[u8]) -> bool {
        let (tags, _) = tags.as_chunks();
        let tags = tags.iter().map(|word| Tag(u64::from_ne_bytes(*word)));
        tags.into_iter().any(|tag| self.tag_generation(tag.position()) != tag.generation())
    }

    /// Returns the words that may contain the tag, with their positions.
    fn tag_words(&self, candidates: &Candidates) -> impl Iterator<Item = (usize, &AtomicU64)> {
        candidates.buckets.into_iter().flat_map(|bucket| {
            let words = self.tag_bucket(bucket).iter().enumerate();
            words.map(move |(i, word)| (bucket * BUCKET_WORDS + i, word))
        })
    }

    /// Finds or adds a tag, and counts one use of the tag. Returns the tag, and whether it
    /// displaced another tag.
    fn enter_tag(&self, candidates: &Candidates) -> (Tag, bool) {
        loop {
            let mut entries = self.tag_words(candidates).map(load_entry);
            if let Some((position, entry)) = entries.find(|(_, entry)| candidates.has(*entry)) {
                // If another thread changes the word first, this use is not counted.
                if entry.used() < USED_MAX {
                    self.replace_tag(position, entry, entry.with_used(entry.used() + 1));
                }
                return (Tag::new(position, entry.generation()), false);
            }
            let entries: Vec<_> = self.tag_words(candidates).map(load_entry).collect();
            if entries.iter().any(|(_, entry)| candidates.has(*entry)) {
                continue;
            }
            // The number of used words in the bucket that contains a position.
            let in_use = |position: usize| {
                let bucket = entries
                    .iter()
                    .filter(|(other, _)| other / BUCKET_WORDS == position / BUCKET_WORDS);
                bucket.filter(|(_, entry)| entry.0 != 0).count()
            };
            // Among words with the same use count, the fingerprint chooses one.
            let order =
                |position: usize| (position ^ candidates.fingerprint as usize) % BUCKET_WORDS;
            let least = entries.iter().min_by_key(|(position, entry)| {
                let is_free = entry.0 == 0;
                (
                    !is_free,
                    if is_free { in_use(*position) } else { 0 },
                    entry.used(),
                    order(*position),
                )
            });
            let Some(&(position, old)) = least else { unreachable!("buckets have words") };
            let new = Entry::new(candidates.fingerprint, 1, old.generation() + 1);
            if !self.replace_tag(position, old, new) {
                continue;
            }
            if old.0 != 0 {
                // Ages the other words: a tag that is not used again is displaced before the new
                // tag.
                for (other, entry) in entries.iter().filter(|(other, _)| *other != position) {
                    if entry.used() > 0 {
                        self.replace_tag(*other, *entry, entry.with_used(entry.used() - 1));
                    }
                }
            }
            return (Tag::new(position, new.generation()), old.0 != 0);
        }
    }

    fn replace_tag(&self, position: usize, old: Entry, new: Entry) -> bool {
        let word = &self.tag_bucket(position / BUCKET_WORDS)[position % BUCKET_WORDS];
        word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Raises the generation of every word of a tag. Returns false if the tag is not in the table.
    /// Then no live item has the tag.
    fn drop_tag(&self, candidates: &Candidates) -> bool {
        let mut is_found = false;
        for (position, word) in self.tag_words(candidates) {
            loop {
                let entry = Entry(word.load(Ordering::Acquire));
                if !candidates.has(entry) {
                    break;
                }
                is_found = true;
                let next = Entry::new(entry.fingerprint(), entry.used(), entry.generation() + 1);
                if self.replace_tag(position, entry, next) {
                    break;
                }
            }
        }
        is_found
    }
}

impl Shared {
    /// Returns whether an item was flushed because one of its tags was dropped or displaced.
    pub(crate) fn has_dropped_tag(&self, record: &Record<'_>) -> bool {
        self.table().has_dropped(record.tags())
    }

    /// Returns the number of dropped and displaced tags, including tags of earlier processes.
    pub(crate) fn tag_drops(&self) -> u64 {
        self.table().header_page().tags.drops.load(Ordering::Acquire)
    }

    /// Drops the tag with this name, and counts the drop. Returns false if no live item can have
    /// the tag.
    pub(crate) fn drop_tag_named(&self, name: &[u8]) -> bool {
        let table = self.table();
        let buckets = table.tag_buckets();
        if buckets == 0 {
            return false;
        }
        let is_found = table.drop_tag(&Candidates::of(self.hash(name), buckets));
        if is_found {
            table.header_page().tags.drops.fetch_add(1, Ordering::Release);
            self.report_change(ItemChange::Invalidated);
        }
        is_found
    }

    /// Returns the number of segments for the tag table: a power of two, at least 1.
    fn segments_for_tags(&self) -> usize {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let len = (limit / TABLE_SHARE).min(TABLE_LEN_MAX) / self.segment_len();
        1 << len.max(1).ilog2()
    }
}

impl Handle {
    pub(crate) fn tag_named(&mut self, name: &[u8]) -> Result<Tag, Refusal> {
        if self.shared.table().tag_buckets() == 0 {
            self.make_tag_table()?;
        }
        let table = self.shared.table();
        let candidates = Candidates::of(self.shared.hash(name), table.tag_buckets());
        let (tag, has_displaced) = table.enter_tag(&candidates);
        if has_displaced {
            let words = &table.header_page().tags;
            words.displaced.fetch_add(1, Ordering::Relaxed);
            // Makes maintenance search for the items of the displaced tag.
            words.drops.fetch_add(1, Ordering::Release);
            self.shared.report_change(ItemChange::Invalidated);
        }
        Ok(tag)
    }

    /// Makes the table for the first tag. While another handle makes the table or grows the index,
    /// waits at most [`WAITS_MAX`] times. After that, refuses the tag.
    #[cold]
    fn make_tag_table(&mut self) -> Result<(), Refusal> {
        let shared = std::sync::Arc::clone(&self.shared);
        for round in 0..WAITS_MAX {
            if shared.table().tag_buckets() != 0 {
                return Ok(());
            }
            // Hold the growth lock, so that the index does not grow at the same time.
            if let Ok(_growing) = shared.growth.try_lock() {
                return self.fill_tag_table(&shared);
            }
            // Release the pin and the open segments, because the other handle may need the memory
            // that they occupy.
            self.pin.pause();
            self.end_writing();
            wait_for_others(round);
        }
        Err(Refusal::OutOfMemory)
    }

    fn fill_tag_table(&mut self, shared: &Shared) -> Result<(), Refusal> {
        if shared.table().tag_buckets() != 0 {
            return Ok(());
        }
        let wanted = shared.segments_for_tags();
        let mut taken = Vec::with_capacity(wanted);
        while taken.len() < wanted {
            match self.take_segment() {
                Ok(segment) => taken.push(segment),
                Err(refusal) => {
                    shared.free(&taken);
                    return Err(refusal);
                }
            }
        }
        shared.alloc().indexing += wanted;
        let table = shared.table();
        (0..).zip(taken).for_each(|(part, segment)| table.extend_tags(part, segment));
        let buckets = wanted * shared.segment_len() / TAG_BUCKET_LEN;
        table.header_page().tags.buckets.store(buckets as u64, Ordering::Release);
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Updates;
    use crate::segment::tests::cache;

    #[test]
    fn a_tag_that_two_threads_entered_is_dropped_twice() {
        let cache = cache(16, true);
        let mut handle = cache.handle();
        let first = handle.tag(b"a").unwrap();
        let table = handle.shared.table();
        let candidates = Candidates::of(handle.shared.hash(b"a"), table.tag_buckets());
        let word = table
            .tag_words(&candidates)
            .find(|(position, _)| *position != first.position())
            .unwrap();
        word.1.store(Entry::new(candidates.fingerprint, 1, 7).0, Ordering::Release);
        let second = Tag::new(word.0, 7);
        let words = |tag: Tag| tag.0.to_ne_bytes();
        assert!(!table.has_dropped(&words(first)) && !table.has_dropped(&words(second)));
        assert!(handle.drop_tag(b"a"));
        let table = handle.shared.table();
        assert!(table.has_dropped(&words(first)) && table.has_dropped(&words(second)));
    }
}
