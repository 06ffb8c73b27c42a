//! Hot keys: the most requested keys and prefixes, estimated from a sample.
//!
//! The sample contains about one request in a hundred. Tables of a fixed size count its keys and
//! prefixes. The algorithm is Space-Saving (Metwally, Agrawal and El Abbadi, *Efficient Computation
//! of Frequent and Top-k Elements in Data Streams*, 2005). If a table is full, a new key replaces
//! the key with the lowest count. The new key inherits this count, which is also stored as its
//! possible error. A count is therefore never too low, and `count - error` is never too high. All
//! counts are halved every ten seconds, so that old hot keys fade.

use larder_store::Seconds;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of keys in a thread's table.
const KEYS_MAX: usize = 128;
/// The maximum number of prefixes in a thread's table.
const PREFIXES_MAX: usize = 64;
/// The maximum number of bytes of a name that a table stores. All names of a thread together have
/// at most 48,000 bytes.
const NAME_LEN_MAX: usize = 250;
/// The mean number of requests per counted request.
const GAP: u64 = 100;
/// All counts are halved once per interval of this many seconds.
const HALVING_SECS: u32 = 10;
/// The minimum count of a name in a report.
const COUNT_MIN: u64 = 3;

/// A sample of one thread's requests.
#[derive(Debug)]
pub struct HotKeys {
    /// The number of requests up to and including the next counted request. Only the owning thread
    /// writes this number.
    left: AtomicU64,
    /// The state of the random generator, never 0. Only the owning thread writes this state.
    random: AtomicU64,
    sample: Mutex<Sample>,
}

/// A hot key or prefix, with its share of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// The first 250 bytes of the key or prefix.
    pub name: Vec<u8>,
    /// A lower bound of the name's share of the counted requests, from 0 to 1.
    pub share: f64,
}

/// The hottest keys and prefixes of all threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotKeyReport {
    /// The number of counted requests. Each halving of the counts halves this number, too.
    pub samples: u64,
    /// Keys, the most frequent first.
    pub keys: Vec<HotKey>,
    /// Prefixes of keys up to the first delimiter, the most frequent first.
    pub prefixes: Vec<HotKey>,
}

impl Default for HotKeys {
    fn default() -> Self {
        let (keys, prefixes) = (FrequencyTable::new(KEYS_MAX), FrequencyTable::new(PREFIXES_MAX));
        let sample = Sample { keys, prefixes, samples: 0, halved_at: Seconds(0) };
        Self {
            left: AtomicU64::new(1),
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
            sample: Mutex::new(sample),
        }
    }
}

impl HotKeys {
    /// Decides which of the next `requests` requests to count. Returns the index of this request,
    /// or `None` to count none of them. Only the owning thread may call this function.
    #[inline]
    #[must_use]
    pub fn pick(&self, requests: usize) -> Option<usize> {
        let (left, requests) = (self.left.load(Relaxed), requests as u64);
        if left > requests {
            self.left.store(left - requests, Relaxed);
            return None;
        }
        Some(self.start_gap(left, requests))
    }

    #[cold]
    fn start_gap(&self, left: u64, requests: u64) -> usize {
        let (passed, mut gap) = (requests.saturating_sub(left), 0);
        let mut random = self.random.load(Relaxed);
        // Count at most one of these requests: add random gaps until the next counted request is
        // after the last one of them.
        while gap <= passed {
            // Xorshift (Marsaglia 2003).
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            gap += 1 + random % (2 * GAP - 1);
        }
        self.random.store(random, Relaxed);
        self.left.store(gap - passed, Relaxed);
        usize::try_from(left.saturating_sub(1)).unwrap_or(usize::MAX)
    }

    /// Counts a request. `key` and `prefix` are names with their hashes.
    pub(crate) fn count(&self, key: (&[u8], u64), prefix: Option<(&[u8], u64)>, now: Seconds) {
        let mut sample = self.lock();
        sample.age(now);
        sample.samples += 1;
        sample.keys.count(key);
        if let Some(prefix) = prefix {
            sample.prefixes.count(prefix);
        }
    }

    /// Removes all counts.
    pub(crate) fn reset(&self) {
        let mut sample = self.lock();
        sample.samples = 0;
        sample.keys.clear();
        sample.prefixes.clear();
    }

    /// Merges the samples of several threads into a report with up to `max` keys and prefixes.
    pub fn hottest<'t>(
        threads: impl IntoIterator<Item = &'t Self>,
        now: Seconds,
        max: usize,
    ) -> HotKeyReport {
        let (mut keys, mut prefixes, mut samples) = (HashMap::new(), HashMap::new(), 0);
        for thread in threads {
            let mut sample = thread.lock();
            sample.age(now);
            samples += sample.samples;
            sample.keys.add_to(&mut keys);
            sample.prefixes.add_to(&mut prefixes);
        }
        let top = |counts| top(counts, samples, max);
        HotKeyReport { samples, keys: top(keys), prefixes: top(prefixes) }
    }

    fn lock(&self) -> MutexGuard<'_, Sample> {
        // Each change leaves the counts consistent, so a poisoned lock is safe to use.
        self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::cast_precision_loss, reason = "shares are printed with few digits")]
fn top(counts: HashMap<Vec<u8>, u64>, samples: u64, max: usize) -> Vec<HotKey> {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count >= COUNT_MIN).collect();
    counts.sort_unstable_by(|(name, count), (other, than)| than.cmp(count).then(name.cmp(other)));
    counts.truncate(max);
    let hot = |(name, count)| HotKey { name, share: count as f64 / samples as f64 };
    counts.into_iter().map(hot).collect()
}

#[derive(Debug)]
struct Sample {
    keys: FrequencyTable,
    prefixes: FrequencyTable,
    samples: u64,
    halved_at: Seconds,
}

impl Sample {
    /// Halves all counts once for each ten seconds since the last halving.
    fn age(&mut self, now: Seconds) {
        let halvings = now.0.saturating_sub(self.halved_at.0) / HALVING_SECS;
        if halvings == 0 {
            return;
        }
        self.halved_at = now;
        let halvings = halvings.min(u64::BITS - 1);
        self.samples >>= halvings;
        self.keys.halve(halvings);
        self.prefixes.halve(halvings);
    }
}

/// A Space-Saving table of names and counts.
///
/// Hashes, counts and names are separate arrays with one slot per name, so that a search for a name
/// reads little memory. If the table is full, a new name takes a slot with the lowest count. The
/// search for such a slot continues after the slot that was replaced last, so one scan of all slots
/// serves many new names. This works because the lowest count only rises, except when all counts
/// are halved.
#[derive(Debug)]
struct FrequencyTable {
    max: usize,
    hashes: Vec<u32>,
    counts: Vec<u32>,
    names: Vec<Name>,
    /// A lower bound of all counts.
    lowest: u32,
    /// The index at which the search for a slot with the lowest count continues. All earlier slots
    /// have higher counts.
    next: usize,
}

#[derive(Debug)]
struct Name {
    bytes: Vec<u8>,
    /// The maximum part of the count that belongs to names that this name has replaced.
    error: u32,
}

/// The number of hashes that vector instructions compare at once.
const LANES: usize = 16;

impl FrequencyTable {
    fn new(max: usize) -> Self {
        let (hashes, counts, names) = Default::default();
        Self { max, hashes, counts, names, lowest: 0, next: 0 }
    }

    fn clear(&mut self) {
        *self = Self::new(self.max);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "half of a hash is enough for a first comparison"
    )]
    fn count(&mut self, (name, hash): (&[u8], u64)) {
        let (name, hash) = (name.get(..NAME_LEN_MAX).unwrap_or(name), hash as u32);
        if let Some(slot) = self.slot_of(name, hash) {
            if let Some(count) = self.counts.get_mut(slot) {
                *count = count.saturating_add(1);
            }
        } else if self.names.len() < self.max {
            self.hashes.push(hash);
            self.counts.push(1);
            self.names.push(Name { bytes: name.to_vec(), error: 0 });
        } else {
            self.replace(name, hash);
        }
    }

    fn slot_of(&self, name: &[u8], hash: u32) -> Option<usize> {
        for (chunk, hashes) in self.hashes.chunks(LANES).enumerate() {
            if !hashes.iter().fold(false, |found, other| found | (*other == hash)) {
                continue;
            }
            let slots = hashes.iter().enumerate().filter(|(_, other)| **other == hash);
            let mut slots = slots.map(|(slot, _)| chunk * LANES + slot);
            let has_name = |slot: &usize| self.names.get(*slot).is_some_and(|at| at.bytes == name);
            if let Some(slot) = slots.find(has_name) {
                return Some(slot);
            }
        }
        None
    }

    /// Replaces a name that has the lowest count.
    fn replace(&mut self, name: &[u8], hash: u32) {
        let mut rest = self.counts.iter().enumerate().skip(self.next);
        let lowest = rest.find(|(_, count)| **count == self.lowest).map(|(slot, _)| slot);
        let slot = lowest.unwrap_or_else(|| {
            let counts = self.counts.iter().enumerate();
            let (slot, count) = counts.min_by_key(|(_, count)| **count).unwrap_or((0, &0));
            self.lowest = *count;
            slot
        });
        self.next = slot + 1;
        let count = self.counts.get_mut(slot).zip(self.hashes.get_mut(slot));
        if let (Some((count, known)), Some(at)) = (count, self.names.get_mut(slot)) {
            at.error = *count;
            at.bytes.clear();
            at.bytes.extend_from_slice(name);
            *known = hash;
            *count = count.saturating_add(1);
        }
    }

    fn halve(&mut self, times: u32) {
        let halved = |count: u32| count.checked_shr(times).unwrap_or(0);
        self.counts.iter_mut().for_each(|count| *count = halved(*count));
        self.names.iter_mut().for_each(|name| name.error = halved(name.error));
        (self.lowest, self.next) = (0, 0);
    }

    /// Adds the lower bound of each count, `count - error`, to `all`.
    fn add_to(&self, all: &mut HashMap<Vec<u8>, u64>) {
        for (name, count) in self.names.iter().zip(&self.counts) {
            let certain = count.saturating_sub(name.error);
            *all.entry(name.bytes.clone()).or_default() += u64::from(certain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    const NOW: Seconds = Seconds(1000);

    fn count(hot_keys: &HotKeys, key: &str, now: Seconds) {
        let hash = |text: &str| BuildHasherDefault::<DefaultHasher>::default().hash_one(text);
        let prefix = key.split_once(':').map(|(prefix, _)| prefix);
        let prefix = prefix.map(|prefix| (prefix.as_bytes(), hash(prefix)));
        hot_keys.count((key.as_bytes(), hash(key)), prefix, now);
    }

    fn names(hot: &[HotKey]) -> Vec<&str> {
        hot.iter().map(|hot| std::str::from_utf8(&hot.name).unwrap()).collect()
    }

    #[test]
    fn about_one_request_in_a_hundred_is_picked() {
        let hot_keys = HotKeys::default();
        let mut picked = [0; 32];
        for _ in 0..100_000 {
            if let Some(index) = hot_keys.pick(32) {
                picked[index] += 1;
            }
        }
        let all: u32 = picked.iter().sum();
        assert!((28_000..33_000).contains(&all), "{all} of 3,200,000");
        assert!(picked.iter().all(|&one| (700..1300).contains(&one)), "{picked:?}");
        assert_eq!(hot_keys.pick(0), None);
    }

    #[test]
    fn frequent_keys_are_found_among_many_others() {
        let threads = [HotKeys::default(), HotKeys::default()];
        for n in 0..50_000 {
            let thread = &threads[n % 2];
            count(thread, &format!("page:{n}"), NOW);
            if n % 10 < 3 {
                count(thread, "user:1", NOW);
            }
            if n % 20 == 0 {
                count(thread, "user:2", NOW);
            }
        }
        let hottest = HotKeys::hottest(&threads, NOW, 20);
        assert_eq!(hottest.samples, 67_500);
        assert_eq!(names(&hottest.keys)[..2], ["user:1", "user:2"]);
        let shares: Vec<f64> = hottest.keys.iter().map(|hot| hot.share).collect();
        // A share is never too high. It is too low by at most 1/128, because the table has 128
        // slots.
        assert!((0.21..=0.2223).contains(&shares[0]), "{shares:?}");
        assert!((0.028..=0.0371).contains(&shares[1]), "{shares:?}");
        assert!(shares[2..].iter().all(|share| *share < 0.001), "{shares:?}");
        assert_eq!(names(&hottest.prefixes), ["page", "user"]);
        assert!((0.74..0.7408).contains(&hottest.prefixes[0].share));
    }

    #[test]
    fn counts_of_formerly_hot_keys_decay() {
        let hot_keys = HotKeys::default();
        (0..1000).for_each(|_| count(&hot_keys, "old", NOW));
        let later = Seconds(NOW.0 + 20);
        (0..500).for_each(|_| count(&hot_keys, "new", later));
        let hottest = HotKeys::hottest([&hot_keys], later, 20);
        assert_eq!(names(&hottest.keys), ["new", "old"]);
        assert_eq!((hottest.samples, hottest.keys[1].share), (750, 250.0 / 750.0));
        let hottest = HotKeys::hottest([&hot_keys], Seconds(u32::MAX), 20);
        assert_eq!((hottest.samples, hottest.keys), (0, vec![]));
    }

    #[test]
    fn the_length_and_number_of_names_are_bounded() {
        let hot_keys = HotKeys::default();
        for n in 0..10_000 {
            count(&hot_keys, &format!("{n}:{}", "k".repeat(1000)), NOW);
        }
        let sample = hot_keys.lock();
        let len = |table: &FrequencyTable| {
            table.names.iter().map(|name| name.bytes.capacity()).sum::<usize>()
        };
        assert!(len(&sample.keys) <= 2 * KEYS_MAX * NAME_LEN_MAX, "{}", len(&sample.keys));
        assert!(len(&sample.prefixes) <= 2 * PREFIXES_MAX * NAME_LEN_MAX);
        drop(sample);
        (0..10).for_each(|_| count(&hot_keys, "x", NOW));
        hot_keys.reset();
        assert_eq!(HotKeys::hottest([&hot_keys], NOW, 20), HotKeyReport::default());
    }
}
