//! The miss-ratio curve: estimates the hit ratio with less or more memory while the cache runs.
//!
//! Keys whose hash is below a threshold represent all other keys. The method is spatially hashed
//! sampling, with a sample of bounded size (Waldspurger et al., "Efficient MRC Construction with
//! SHARDS", FAST 2015). The sampled keys are kept in the order of their last use. An LRU cache
//! would still have a key if all items that were used after it fit into memory. The total length of
//! these items is estimated from the sampled items among them. A key that the cache has evicted
//! stays in this order until an LRU cache with the largest of [`FACTORS`] would have evicted it,
//! too.
//!
//! A lookup that is not sampled costs a count and a comparison. Each handle buffers its samples,
//! and adds several at a time to the curve under the lock.

use super::lru_stack::{Extent, Stack};
use crate::Seconds;
use crate::segment::sync::Ordering::Relaxed;
use std::sync::atomic::AtomicU64;
// The lock is acquired last and held briefly, so model checks need not cover it.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The memory sizes of the curve, as multiples of the limit.
const FACTORS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

/// The share of memory that live items occupy in a full cache. The rest is index, reserve and dead
/// items.
const LIVE_SHARE: f64 = 0.95;

/// At most one key in this many is sampled. With a higher rate, sampling would take over 1 % of the
/// time of a lookup.
const ONE_IN_MIN: u64 = 128;
const THRESHOLD_MAX: u64 = u64::MAX / ONE_IN_MIN;

/// The maximum number of keys in the sample. The error of SHARDS with 8192 keys is below 0.01 in
/// most loads.
const KEYS_MAX: usize = 8192;
/// The sample starts over if its threshold was lowered before, it now has fewer keys than this, and
/// the items of these keys fill the memory of the largest factor.
const KEYS_MIN: usize = KEYS_MAX / 32;

/// The number of sampled lookups after which counts are halved, so that the estimate follows the
/// load.
const READS_MAX: f64 = 65_536.0;

/// The number of samples that a handle buffers before it adds them to the curve.
pub(crate) const WAITING_MAX: usize = 32;

/// An estimate of the hit ratio that an LRU cache would have under other memory limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MissRatioCurve {
    /// Multiples of the current limit in ascending order, each with the hit ratio at that limit,
    /// from 0 to 1. The list is empty if no lookup was sampled since the start, the last reset or
    /// the last change of the limit.
    pub hit_ratios: Vec<(f64, f64)>,
    /// The number of sampled lookups in the estimate. Older lookups count less.
    pub samples: u64,
    /// The number of keys in the sample.
    pub keys: usize,
    /// The share of all keys that is sampled, 0 to 1.
    pub sampled: f64,
}

/// The curve and the sampling threshold, which all handles share.
#[derive(Debug)]
pub(crate) struct Mrc {
    /// A copy of [`Curve::threshold`] that is read without the lock.
    pub(crate) threshold: AtomicU64,
    curve: Mutex<Curve>,
}

impl Mrc {
    /// Returns an empty curve for a memory limit in bytes.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let curve = Mutex::new(Curve::new(limit_bytes));
        Self { threshold: AtomicU64::new(THRESHOLD_MAX), curve }
    }

    pub(crate) fn curve(&self) -> MutexGuard<'_, Curve> {
        self.curve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn estimate(&self) -> MissRatioCurve {
        self.curve().estimate()
    }

    /// Sets a new memory limit in bytes, and zeroes the counts.
    pub(crate) fn set_limit(&self, bytes: usize) {
        let mut curve = self.curve();
        curve.limit_bytes = bytes;
        curve.counts = Counts::default();
    }

    /// Zeroes the counts and keeps the sample.
    pub(crate) fn reset(&self) {
        self.curve().counts = Counts::default();
    }

    /// Empties the sample after a flush.
    pub(crate) fn clear(&self) {
        self.curve().stack.clear();
    }
}

/// The samples of a handle that were not added to the curve yet.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// The value of [`Mrc::threshold`] at the start of the batch.
    threshold: u64,
    /// The number of lookups, sampled or not, since the samples were last added to the curve.
    pub(crate) reads: u64,
    pub(crate) waiting: Vec<Sample>,
}

/// One use of a sampled key.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) hash: u64,
    /// The number of successive lookups; 0 for a write.
    pub(crate) reads: u32,
    /// The size and expiry of the live item in memory after the use, or `None` if there is no such
    /// item.
    pub(crate) found: Option<Extent>,
    pub(crate) now: Seconds,
}

impl Sampler {
    /// Adopts the current threshold.
    #[inline]
    pub(crate) fn follow(&mut self, mrc: &Mrc) {
        self.threshold = mrc.threshold.load(Relaxed);
    }

    #[inline]
    pub(crate) fn wants(&self, hash: u64) -> bool {
        hash < self.threshold
    }

    /// Counts a lookup that repeats the last sample, so that even the most frequent key costs
    /// little if it is sampled. Returns false if the lookup does not repeat the last sample.
    pub(crate) fn repeats(&mut self, hash: u64) -> bool {
        let last = self.waiting.last_mut().filter(|last| last.hash == hash && last.reads > 0);
        last.map(|last| last.reads += 1).is_some()
    }
}

#[derive(Debug)]
pub(crate) struct Curve {
    stack: Stack,
    pub(crate) threshold: u64,
    limit_bytes: usize,
    counts: Counts,
}

/// Counts of lookups. The counts become fractions when the sampling rate changes or when they are
/// halved.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// The number of sampled lookups.
    reads: f64,
    /// The expected number of sampled lookups: the sampling rate times all lookups.
    due: f64,
    /// The number of hits among the sampled lookups, for each memory size.
    hits: [f64; FACTORS.len()],
}

impl Counts {
    fn scale(&mut self, by: f64) {
        let counts = [&mut self.reads, &mut self.due];
        counts.into_iter().chain(&mut self.hits).for_each(|count| *count *= by);
    }

    fn read(&mut self, times: f64, hit: impl Fn(f64) -> bool) {
        self.reads += times;
        let hits = FACTORS.iter().zip(&mut self.hits);
        hits.filter(|(factor, _)| hit(**factor)).for_each(|(_, hits)| *hits += times);
    }
}

impl Curve {
    fn new(limit_bytes: usize) -> Self {
        // The stack has positions for twice the maximum number of keys and for one handle's waiting
        // samples, so that it is rarely compacted.
        let stack = Stack::new(2 * KEYS_MAX + WAITING_MAX);
        Self { stack, threshold: THRESHOLD_MAX, limit_bytes, counts: Counts::default() }
    }

    /// Returns the fraction of all keys that are sampled.
    fn rate(&self) -> f64 {
        self.threshold as f64 / u64::MAX as f64
    }

    /// Returns how many bytes of live items fit within the memory limit.
    fn capacity(&self) -> f64 {
        self.limit_bytes as f64 * LIVE_SHARE
    }

    pub(crate) fn take(&mut self, sampler: &mut Sampler) {
        self.counts.due += std::mem::take(&mut sampler.reads) as f64 * self.rate();
        for sample in sampler.waiting.drain(..) {
            if sample.hash < self.threshold {
                self.follow(&sample);
            }
        }
        self.forget();
        if self.counts.reads > READS_MAX {
            self.counts.scale(0.5);
        }
    }

    fn follow(&mut self, sample: &Sample) {
        if sample.reads > 0 {
            self.read(sample);
        } else if let Some(extent) = sample.found {
            self.stack.put(sample.hash, extent);
        } else {
            self.stack.remove(sample.hash);
        }
    }

    fn read(&mut self, sample: &Sample) {
        let (rate, capacity) = (self.rate(), self.capacity());
        let touched = self.stack.touch(sample.hash, sample.now);
        let needed = touched.map(|(extent, above)| above as f64 / rate + extent.len as f64);
        self.counts.read(1.0, |factor| needed.is_some_and(|bytes| bytes <= capacity * factor));
        let known = touched.map(|(extent, _)| extent);
        if let Some(extent) = sample.found.filter(|&found| known != Some(found)) {
            // An LRU cache would have missed and stored the item now, or the item has changed.
            self.stack.put(sample.hash, extent);
        }
        let is_present = touched.is_some() || sample.found.is_some();
        self.counts.read(f64::from(sample.reads - 1), |_| is_present);
    }

    /// Removes the keys that a cache with the largest factor would have evicted. If more than
    /// [`KEYS_MAX`] keys remain, lowers the threshold.
    fn forget(&mut self) {
        let bytes_max = self.capacity() * FACTORS[FACTORS.len() - 1] * self.rate();
        let full = self.stack.bytes() as f64 > bytes_max;
        while self.stack.bytes() as f64 > bytes_max {
            self.stack.remove_oldest();
        }
        if self.stack.len() > KEYS_MAX {
            self.thin();
        } else if full && self.stack.len() < KEYS_MIN && self.threshold < THRESHOLD_MAX {
            // Items have become larger, so the sample needs more keys than the threshold admits.
            // Keys that were not sampled before have no history, so start over.
            *self = Self::new(self.limit_bytes);
        }
    }

    /// Lowers the threshold by an eighth, and removes the keys above it from the sample.
    fn thin(&mut self) {
        self.threshold -= self.threshold / 8;
        self.stack.retain_below(self.threshold);
        self.counts.scale(7.0 / 8.0);
    }

    #[expect(clippy::cast_possible_truncation, reason = "a count, bounded by READS_MAX")]
    fn estimate(&self) -> MissRatioCurve {
        let Counts { reads, due, hits } = &self.counts;
        // Attributes the difference between `due` and `reads` to the most frequent keys, which
        // always hit (SHARDS_adj).
        let ratio = |hits: f64| ((hits + due - reads) / due).clamp(0.0, 1.0);
        let points = FACTORS.into_iter().zip(hits.iter().map(|&hits| ratio(hits)));
        MissRatioCurve {
            hit_ratios: points.filter(|_| *reads >= 1.0).collect(),
            samples: *reads as u64,
            keys: self.stack.len(),
            sampled: self.rate(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Expiry;

    const LIMIT: usize = 64 << 20;

    /// A load in which all keys are equally likely, and a key is stored on a miss. The hit ratio of
    /// an LRU cache is then the share of the keys that it holds.
    struct Load {
        curve: Curve,
        sampler: Sampler,
        state: u64,
    }

    impl Load {
        fn new() -> Self {
            let (curve, sampler) = (Curve::new(LIMIT), Sampler::default());
            Self { curve, sampler, state: 1 }
        }

        fn run(&mut self, reads: u64, keys: u64, len: u64) {
            let found = Some(Extent { len, expiry: Expiry::Never });
            for _ in 0..reads {
                self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let hash = ((self.state >> 33) % keys + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                self.sampler.reads += 1;
                if hash < self.curve.threshold {
                    let sample = Sample { hash, reads: 1, found, now: Seconds(1) };
                    self.sampler.waiting.push(sample);
                    self.curve.take(&mut self.sampler);
                }
            }
        }

        /// Runs the load until the sample reflects it, and then again for the estimate.
        #[track_caller]
        fn check(&mut self, keys: u64, len: u64) {
            self.run(10_000_000, keys, len);
            self.curve.counts = Counts::default();
            self.run(10_000_000, keys, len);
            let estimate = self.curve.estimate();
            for (factor, ratio) in estimate.hit_ratios.iter().copied() {
                let share = self.curve.capacity() * factor / (keys * len) as f64;
                let error = ratio - share.min(1.0);
                assert!(error.abs() < 0.03, "{factor}: {ratio}, not {share}; {estimate:?}");
            }
        }
    }

    #[test]
    fn a_full_sample_is_thinned_out() {
        let mut load = Load::new();
        load.check(4_000_000, 50);
        assert!(load.curve.stack.len() <= KEYS_MAX && load.curve.threshold < THRESHOLD_MAX / 2);
    }

    #[test]
    fn new_counts_outweigh_old_ones() {
        let mut load = Load::new();
        load.run(20_000_000, 1_000_000, 200);
        let before = load.curve.estimate().hit_ratios;
        load.run(40_000_000, 500_000, 200);
        let after = load.curve.estimate().hit_ratios;
        assert!(after[0].1 > before[0].1 * 1.8, "{before:?}, {after:?}");
    }

    #[test]
    fn large_items_after_small_ones_are_sampled_as_often_as_before() {
        let mut load = Load::new();
        load.run(20_000_000, 16_000_000, 16);
        assert!(load.curve.threshold < THRESHOLD_MAX / 4);
        load.check(100_000, 5000);
        assert_eq!(load.curve.threshold, THRESHOLD_MAX);
    }

    #[test]
    fn there_is_no_estimate_without_samples() {
        let mut load = Load::new();
        assert_eq!(load.curve.estimate().hit_ratios, []);
        load.run(10_000, 1000, 100);
        assert_eq!(load.curve.estimate().hit_ratios.len(), FACTORS.len());
    }
}
