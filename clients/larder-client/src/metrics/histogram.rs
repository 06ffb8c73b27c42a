//! Histograms of durations. Between 1 µs and 17 s, each power of two has eight buckets, so the
//! upper bound of a bucket exceeds the recorded durations by at most an eighth. One bucket contains
//! all shorter durations, and one bucket contains all longer durations.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// log2 of the number of buckets per power of two.
const PER_OCTAVE_BITS: u32 = 3;
const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;
/// The first bucket's upper bound is 2 to this power, in nanoseconds: about 1 µs.
const OCTAVE_MIN: u32 = 10;
/// The largest bucket bound is 2 to this power, in nanoseconds: about 17 s. Longer times are
/// counted in a bucket without an upper bound.
const OCTAVE_MAX: u32 = 34;
const BOUNDS: usize = (OCTAVE_MAX - OCTAVE_MIN) as usize * PER_OCTAVE + 1;
const BUCKETS: usize = BOUNDS + 1;

/// The number of shards. Threads are distributed over the shards, so they rarely contend for cache
/// lines.
const SHARDS: usize = 4;

/// Returns the index of the bucket that counts a time in nanoseconds. The bucket's upper bound is
/// exclusive.
fn bucket_of(nanos: u64) -> usize {
    if nanos < 1 << OCTAVE_MIN {
        return 0;
    }
    let octave = nanos.ilog2();
    #[expect(clippy::cast_possible_truncation, reason = "only the last bits are used")]
    let part = (nanos >> (octave - PER_OCTAVE_BITS)) as usize % PER_OCTAVE;
    let bucket = 1 + (octave - OCTAVE_MIN) as usize * PER_OCTAVE + part;
    bucket.min(BOUNDS)
}

/// Returns the upper bound of a bucket in nanoseconds, or `None` for the last bucket.
fn bound(bucket: usize) -> Option<u64> {
    let (octave, part) = (bucket / PER_OCTAVE, bucket % PER_OCTAVE);
    let bound = ((PER_OCTAVE + part) as u64) << (OCTAVE_MIN - PER_OCTAVE_BITS) << octave;
    (bucket < BOUNDS).then_some(bound)
}

/// A histogram that threads update concurrently.
#[derive(Debug)]
pub(crate) struct AtomicHistogram([Shard; SHARDS]);

/// The records from a subset of the threads. A shard is aligned to two cache lines, because the
/// hardware prefetches lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Shard {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            nanos: AtomicU64::new(0),
        }))
    }
}

thread_local! {
    static SHARD: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS
    };
}

impl AtomicHistogram {
    #[inline]
    pub(crate) fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // A thread that is exiting has no shard number any more, and records in the first shard.
        let shard = SHARD.try_with(|shard| *shard).unwrap_or(0);
        let Some(shard) = self.0.get(shard) else { return };
        if let Some(bucket) = shard.buckets.get(bucket_of(nanos)) {
            bucket.fetch_add(1, Ordering::Relaxed);
            shard.nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Histogram {
        let mut histogram = Histogram::default();
        for shard in &self.0 {
            for (count, bucket) in histogram.counts.iter_mut().zip(&shard.buckets) {
                *count += bucket.load(Ordering::Relaxed);
            }
            histogram.nanos = histogram.nanos.wrapping_add(shard.nanos.load(Ordering::Relaxed));
        }
        histogram
    }
}

/// A histogram of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The number of recorded times in each bucket.
    counts: Box<[u64]>,
    nanos: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), nanos: 0 }
    }
}

impl Histogram {
    /// Returns the number of recorded times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the recorded times.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Returns the mean, or `None` if nothing was recorded.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        self.nanos.checked_div(self.count()).map(Duration::from_nanos)
    }

    /// Returns a quantile. `part` is from 0 to 1: `quantile(0.99)` is the 99th percentile. The
    /// result is the upper bound of a bucket: at most an eighth too high, at least about a
    /// microsecond, and at most about 17 s. Returns `None` if nothing was recorded.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        #[expect(clippy::cast_possible_truncation, reason = "a part of the count is no larger")]
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let (bound, _) = self.buckets().find(|(_, count)| {
            below += count;
            below >= rank
        })?;
        Some(bound.unwrap_or(Duration::from_nanos(1 << OCTAVE_MAX)))
    }

    /// Iterates over the buckets. Returns the exclusive upper bound and the count of each bucket.
    /// The last bucket has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bound = |bucket| bound(bucket).map(Duration::from_nanos);
        self.counts.iter().enumerate().map(move |(bucket, count)| (bound(bucket), *count))
    }

    /// Returns the times recorded since `earlier`, an earlier histogram of the same series.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts);
        Self {
            counts: counts.map(|(now, before)| now.saturating_sub(*before)).collect(),
            nanos: self.nanos.saturating_sub(earlier.nanos),
        }
    }
}

impl AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.nanos = self.nanos.wrapping_add(other.nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROS: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn bucket_bounds_are_exclusive() {
        for bucket in 0..BOUNDS {
            let bound = bound(bucket).unwrap();
            assert_eq!((bucket_of(bound - 1), bucket_of(bound)), (bucket, bucket + 1));
        }
        assert_eq!((bound(0), bound(BOUNDS - 1)), (Some(1 << 10), Some(1 << 34)));
        assert_eq!((bucket_of(0), bucket_of(u64::MAX), bound(BOUNDS)), (0, BOUNDS, None));
    }

    #[test]
    fn quantiles_are_at_most_an_eighth_too_high() {
        let recorded = AtomicHistogram::default();
        assert_eq!((recorded.snapshot().quantile(0.5), recorded.snapshot().mean()), (None, None));
        (1..=1000).for_each(|micros| recorded.record(MICROS(10 * micros)));
        let histogram = recorded.snapshot();
        for (part, exact) in [(0.0, 10), (0.001, 10), (0.5, 5000), (0.99, 9900), (1.0, 10_000)] {
            let found = histogram.quantile(part).unwrap();
            assert!(found > MICROS(exact) && found <= MICROS(exact) * 9 / 8, "{part}: {found:?}");
        }
        assert_eq!((histogram.count(), histogram.mean()), (1000, Some(MICROS(5005))));
        recorded.record(Duration::from_secs(100));
        assert_eq!(recorded.snapshot().quantile(1.0), Some(Duration::from_nanos(1 << 34)));
    }

    #[test]
    fn all_threads_are_counted_and_since_subtracts_earlier_counts() {
        let recorded = AtomicHistogram::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| (0..1000).for_each(|_| recorded.record(MICROS(3))));
            }
        });
        let before = recorded.snapshot();
        assert_eq!((before.count(), before.sum()), (8000, MICROS(24_000)));
        recorded.record(MICROS(7));
        let new = recorded.snapshot().since(&before);
        assert_eq!((new.count(), new.sum()), (1, MICROS(7)));
        let mut all = before;
        all += &new;
        assert_eq!(all, recorded.snapshot());
    }
}
