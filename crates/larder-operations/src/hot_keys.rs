//! Hot keys: the most requested keys and prefixes, estimated from a sample.
//!
//! About one request in a hundred is counted, in tables of a fixed size: Space-Saving (Metwally, Agrawal and
//! El Abbadi, *Efficient Computation of Frequent and Top-k Elements in Data Streams*, 2005). A new key replaces the
//! key with the lowest count, and inherits this count as its possible error. So a count is never too low, and
//! `count - error` is never too high. All counts are halved every ten seconds, so that old hot keys fade.

use larder_store::Seconds;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many keys and prefixes a thread follows, and how many bytes it keeps of each: 48 KiB together.
const KEYS_MAX: usize = 128;
const PREFIXES_MAX: usize = 64;
const NAME_LEN_MAX: usize = 250;
/// The mean number of requests for each one that is counted.
const GAP: u64 = 100;
const HALVING_SECS: u32 = 10;
/// A name is only shown if it was counted so often.
const COUNT_MIN: u64 = 3;

/// A sample of the requests of one thread.
#[derive(Debug)]
pub struct HotKeys {
    /// Requests until the one that is counted next, itself included. Only the thread writes it.
    left: AtomicU64,
    /// The state of the random choice, never 0. Only the thread writes it.
    random: AtomicU64,
    sample: Mutex<Sample>,
}

/// A key, or a prefix of keys, and what is known of its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// The first 250 bytes of the key or prefix.
    pub name: Vec<u8>,
    /// At least this share of requests is for it.
    pub share: f64,
}

/// What most requests of all threads are for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotKeyReport {
    /// Requests that were counted; older ones count less.
    pub samples: u64,
    /// Keys, the most frequent one first.
    pub keys: Vec<HotKey>,
    /// What keys have before their first delimiter, the most frequent one first.
    pub prefixes: Vec<HotKey>,
}

impl Default for HotKeys {
    fn default() -> Self {
        let (keys, prefixes) = (Frequent::new(KEYS_MAX), Frequent::new(PREFIXES_MAX));
        let sample = Sample { keys, prefixes, samples: 0, halved_at: Seconds(0) };
        Self {
            left: AtomicU64::new(1),
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
            sample: Mutex::new(sample),
        }
    }
}

impl HotKeys {
    /// Passes over this many requests; the index of the one that has to be counted, if one of them has: at most one,
    /// however many they are. Only the owning thread may call it.
    #[inline]
    #[must_use]
    pub fn pick(&self, requests: usize) -> Option<usize> {
        let (left, requests) = (self.left.load(Relaxed), requests as u64);
        if left > requests {
            self.left.store(left - requests, Relaxed);
            return None;
        }
        Some(self.begin_gap(left, requests))
    }

    #[cold]
    fn begin_gap(&self, left: u64, requests: u64) -> usize {
        let (passed, mut gap) = (requests.saturating_sub(left), 0);
        let mut random = self.random.load(Relaxed);
        // One of these requests is enough.
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

    /// Counts a request for a key. Names have their hashes with them.
    pub(crate) fn count(&self, key: (&[u8], u64), prefix: Option<(&[u8], u64)>, now: Seconds) {
        let mut sample = self.lock();
        sample.age(now);
        sample.samples += 1;
        sample.keys.count(key);
        if let Some(prefix) = prefix {
            sample.prefixes.count(prefix);
        }
    }

    /// Forgets all counts.
    pub(crate) fn reset(&self) {
        let mut sample = self.lock();
        sample.samples = 0;
        sample.keys.clear();
        sample.prefixes.clear();
    }

    /// What most requests of several threads are for: up to `max` keys and prefixes.
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
        // What it holds are counts, which are valid even after a panic of a thread that held the lock.
        self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::cast_precision_loss, reason = "shares are shown with few digits")]
fn top(counts: HashMap<Vec<u8>, u64>, samples: u64, max: usize) -> Vec<HotKey> {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count >= COUNT_MIN).collect();
    counts.sort_unstable_by(|(name, count), (other, than)| than.cmp(count).then(name.cmp(other)));
    counts.truncate(max);
    let hot = |(name, count)| HotKey { name, share: count as f64 / samples as f64 };
    counts.into_iter().map(hot).collect()
}

#[derive(Debug)]
struct Sample {
    keys: Frequent,
    prefixes: Frequent,
    samples: u64,
    halved_at: Seconds,
}

impl Sample {
    /// Halves all counts for each ten seconds that have passed.
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

/// The names that are counted most often.
///
/// A place has a part of its hash, a count and the rest in arrays of their own, because each request searches hashes.
/// The lowest count never falls, and a name takes the first place that has it behind the last one that was taken, so
/// that all places are looked through only once for many new names.
#[derive(Debug)]
struct Frequent {
    max: usize,
    hashes: Vec<u32>,
    counts: Vec<u32>,
    names: Vec<Name>,
    /// No count is lower.
    lowest: u32,
    /// Places before this one have higher counts.
    next: usize,
}

#[derive(Debug)]
struct Name {
    bytes: Vec<u8>,
    /// How much of the count may be that of others.
    error: u32,
}

/// So many hashes are compared at once, by instructions for vectors.
const LANES: usize = 16;

impl Frequent {
    fn new(max: usize) -> Self {
        let (hashes, counts, names) = Default::default();
        Self { max, hashes, counts, names, lowest: 0, next: 0 }
    }

    fn clear(&mut self) {
        *self = Self::new(self.max);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "half of a hash is enough to compare first"
    )]
    fn count(&mut self, (name, hash): (&[u8], u64)) {
        let (name, hash) = (name.get(..NAME_LEN_MAX).unwrap_or(name), hash as u32);
        if let Some(place) = self.place_of(name, hash) {
            if let Some(count) = self.counts.get_mut(place) {
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

    fn place_of(&self, name: &[u8], hash: u32) -> Option<usize> {
        for (chunk, hashes) in self.hashes.chunks(LANES).enumerate() {
            if !hashes.iter().fold(false, |found, other| found | (*other == hash)) {
                continue;
            }
            let places = hashes.iter().enumerate().filter(|(_, other)| **other == hash);
            let mut places = places.map(|(place, _)| chunk * LANES + place);
            let is_here = |place: &usize| self.names.get(*place).is_some_and(|at| at.bytes == name);
            if let Some(place) = places.find(is_here) {
                return Some(place);
            }
        }
        None
    }

    /// Puts a name in the place of one with the lowest count.
    fn replace(&mut self, name: &[u8], hash: u32) {
        let mut rest = self.counts.iter().enumerate().skip(self.next);
        let lowest = rest.find(|(_, count)| **count == self.lowest).map(|(place, _)| place);
        let place = lowest.unwrap_or_else(|| {
            let counts = self.counts.iter().enumerate();
            let (place, count) = counts.min_by_key(|(_, count)| **count).unwrap_or((0, &0));
            self.lowest = *count;
            place
        });
        self.next = place + 1;
        let count = self.counts.get_mut(place).zip(self.hashes.get_mut(place));
        if let (Some((count, known)), Some(at)) = (count, self.names.get_mut(place)) {
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

    /// Adds what is certain of each count.
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
    fn one_request_in_a_hundred_is_picked() {
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
        // No more than it is, and no less by more than what 1 of 128 others can have.
        assert!((0.21..=0.2223).contains(&shares[0]), "{shares:?}");
        assert!((0.028..=0.0371).contains(&shares[1]), "{shares:?}");
        assert!(shares[2..].iter().all(|share| *share < 0.001), "{shares:?}");
        assert_eq!(names(&hottest.prefixes), ["page", "user"]);
        assert!((0.74..0.7408).contains(&hottest.prefixes[0].share));
    }

    #[test]
    fn what_was_frequent_once_is_forgotten() {
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
    fn names_and_their_number_are_bounded() {
        let hot_keys = HotKeys::default();
        for n in 0..10_000 {
            count(&hot_keys, &format!("{n}:{}", "k".repeat(1000)), NOW);
        }
        let sample = hot_keys.lock();
        let len =
            |table: &Frequent| table.names.iter().map(|name| name.bytes.capacity()).sum::<usize>();
        assert!(len(&sample.keys) <= 2 * KEYS_MAX * NAME_LEN_MAX, "{}", len(&sample.keys));
        assert!(len(&sample.prefixes) <= 2 * PREFIXES_MAX * NAME_LEN_MAX);
        drop(sample);
        (0..10).for_each(|_| count(&hot_keys, "x", NOW));
        hot_keys.reset();
        assert_eq!(HotKeys::hottest([&hot_keys], NOW, 20), HotKeyReport::default());
    }
}
