//! One thread's latency histograms, one per command class.
//!
//! The upper bound of each bucket is the previous bound times the fourth root of two. Except in the
//! first bucket, which starts at 0, and in the last bucket, which has no bound, the bound is
//! therefore at most 19 % above any latency in the bucket.

use crate::counter::Counter;
use std::time::Duration;

/// A class of commands that share a latency histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandClass {
    /// Lookups that set no expiry. Each key of a memcached line counts as one request, whereas a
    /// multi-key command of RESP counts as one request in total.
    Get,
    /// Stores, including appends and prepends.
    Store,
    /// Removals.
    Delete,
    /// Increments and decrements.
    Count,
    /// Changes of an expiry, including those by lookups, and RESP's `TOUCH`.
    Touch,
    /// All other commands.
    Other,
}

impl CommandClass {
    /// Every class, in the order of statistics.
    pub const ALL: [Self; 6] =
        [Self::Get, Self::Store, Self::Delete, Self::Count, Self::Touch, Self::Other];

    /// Returns the name of the class in statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Store => "store",
            Self::Delete => "delete",
            Self::Count => "count",
            Self::Touch => "touch",
            Self::Other => "other",
        }
    }
}

/// The number of answered requests in each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnsweredCounts([u32; CommandClass::ALL.len()]);

impl AnsweredCounts {
    /// Adds `n` requests of a class.
    #[inline]
    pub fn add(&mut self, class: CommandClass, n: u32) {
        if let Some(count) = self.0.get_mut(class as usize) {
            *count = count.saturating_add(n);
        }
    }

    /// Adds the requests of `other`.
    #[inline]
    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, n)| *count = count.saturating_add(n));
    }

    /// Returns whether no request was answered.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the number of requests of a class.
    #[must_use]
    pub fn of(&self, class: CommandClass) -> u32 {
        self.0.get(class as usize).copied().unwrap_or_default()
    }
}

/// The latency histograms of one thread's requests. Only that thread may record latencies.
#[derive(Debug, Default)]
pub struct Latencies([Histogram; CommandClass::ALL.len()]);

impl Latencies {
    /// Records the latency `took` for each of the `answered` requests.
    #[inline]
    pub fn record(&self, answered: &AnsweredCounts, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = Histogram::bucket_of(nanos);
        for (histogram, &count) in self.0.iter().zip(&answered.0).filter(|(_, count)| **count > 0) {
            histogram.record(bucket, nanos, count.into());
        }
    }

    /// Returns the histogram of a class.
    #[must_use]
    pub fn of(&self, class: CommandClass) -> &Histogram {
        let [get, store, delete, count, touch, other] = &self.0;
        match class {
            CommandClass::Get => get,
            CommandClass::Store => store,
            CommandClass::Delete => delete,
            CommandClass::Count => count,
            CommandClass::Touch => touch,
            CommandClass::Other => other,
        }
    }

    /// Sums the latencies of several threads.
    #[must_use]
    pub fn sum<'l>(threads: impl IntoIterator<Item = &'l Self>) -> Self {
        let sum = Self::default();
        threads.into_iter().for_each(|latencies| sum.add(latencies));
        sum
    }

    pub(crate) fn add(&self, other: &Self) {
        self.0.iter().zip(&other.0).for_each(|(sum, histogram)| sum.add(histogram));
    }

    pub(crate) fn reset(&self) {
        self.0.iter().for_each(Histogram::reset);
    }
}

/// One command class's latency histogram.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; Self::BOUNDS.len() + 1],
    nanos: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), nanos: Counter::default() }
    }
}

impl Histogram {
    /// The number of buckets per octave. An octave is a doubling of the bound.
    pub const PER_OCTAVE: i32 = 4;
    /// The exponent of the first bound: 2^-20 seconds are 0.95 microseconds.
    pub const OCTAVE_MIN: i32 = -20;
    /// The exponent of the last bound: 2^4 seconds are 16 seconds. Longer latencies are in a bucket
    /// without a bound.
    pub const OCTAVE_MAX: i32 = 4;

    /// The inclusive upper bounds of buckets in nanoseconds, rounded down.
    pub const BOUNDS: [u64; 97] = bounds();

    #[inline]
    fn bucket_of(nanos: u64) -> usize {
        Self::BOUNDS.partition_point(|&bound| bound < nanos)
    }

    #[inline]
    fn record(&self, bucket: usize, nanos: u64, count: u64) {
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.add(count);
        }
        self.nanos.add(nanos.saturating_mul(count));
    }

    /// Returns the number of requests in each bucket, in the order of [`Self::BOUNDS`]. The last
    /// bucket has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().map(Counter::get)
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets().sum()
    }

    /// Returns the sum of all latencies.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos.get())
    }

    /// Returns the upper bound of the bucket at quantile `part`, from 0 to 1. If that bucket has no
    /// bound, returns the last bound. Returns `None` if there are no requests.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let buckets: Vec<u64> = self.buckets().collect();
        let count: u64 = buckets.iter().sum();
        #[expect(clippy::cast_possible_truncation, reason = "a part of the count is no larger")]
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let bucket = buckets.iter().position(|in_bucket| {
            below += in_bucket;
            below >= rank
        })?;
        let [.., last] = Self::BOUNDS;
        Some(Duration::from_nanos(Self::BOUNDS.get(bucket).copied().unwrap_or(last)))
    }

    fn add(&self, other: &Self) {
        self.buckets.iter().zip(&other.buckets).for_each(|(sum, bucket)| sum.add(bucket.get()));
        self.nanos.add(other.nanos.get());
    }

    fn reset(&self) {
        self.buckets.iter().for_each(Counter::reset);
        self.nanos.reset();
    }
}

#[expect(clippy::indexing_slicing, reason = "the compiler evaluates and checks it")]
const fn bounds() -> [u64; 97] {
    /// Element i is one second times 2^(i/4), in units of 2^-20 nanoseconds.
    const SECOND: [u64; Histogram::PER_OCTAVE as usize] = [
        1_048_576_000_000_000,
        1_246_974_039_821_093,
        1_482_910_400_378_930,
        1_763_487_599_042_157,
    ];
    let mut bounds = [0; 97];
    let mut i = 0;
    while i < bounds.len() {
        bounds[i] = SECOND[i % SECOND.len()] >> (40 - i / SECOND.len());
        i += 1;
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_powers_of_the_fourth_root_of_two() {
        assert_eq!((Histogram::BOUNDS[0], Histogram::BOUNDS[96]), (953, 16_000_000_000));
        for (i, bound) in (0..).zip(Histogram::BOUNDS) {
            let octave = f64::from(Histogram::OCTAVE_MIN) + f64::from(i) / 4.0;
            let exact = octave.exp2() * 1e9;
            assert!((exact - 1.0..=exact).contains(&(bound as f64)), "{bound} is not {exact}");
        }
    }

    #[test]
    fn a_bucket_includes_its_bound_and_excludes_the_previous_one() {
        for (i, bound) in Histogram::BOUNDS.into_iter().enumerate() {
            assert_eq!(Histogram::bucket_of(bound), i);
            assert_eq!(Histogram::bucket_of(bound + 1), i + 1);
        }
        assert_eq!((Histogram::bucket_of(0), Histogram::bucket_of(u64::MAX)), (0, 97));
    }

    #[test]
    fn a_sum_adds_all_threads_and_keeps_classes_separate() {
        let threads = [Latencies::default(), Latencies::default()];
        let mut answered = AnsweredCounts::default();
        assert!(answered.is_empty());
        answered.add(CommandClass::Get, 3);
        answered.add(CommandClass::Touch, 1);
        threads[0].record(&answered, Duration::from_millis(1));
        threads[1].record(&answered, Duration::from_millis(2));
        let sum = Latencies::sum(&threads);
        assert_eq!(sum.of(CommandClass::Get).count(), 6);
        assert_eq!(sum.of(CommandClass::Get).sum(), Duration::from_millis(9));
        assert_eq!(sum.of(CommandClass::Touch).count(), 2);
        assert_eq!(sum.of(CommandClass::Store).count(), 0);
        sum.reset();
        assert!(CommandClass::ALL.into_iter().all(|class| sum.of(class).count() == 0));
    }

    /// A quantile is the upper bound of the bucket with the request of that rank, or the highest
    /// bound if that bucket has no bound.
    #[test]
    fn quantiles_are_at_most_a_fifth_too_large() {
        let latencies = Latencies::default();
        let mut one = AnsweredCounts::default();
        one.add(CommandClass::Store, 1);
        let store = latencies.of(CommandClass::Store);
        assert_eq!(store.quantile(0.5), None);
        (1..=1000).for_each(|micros| latencies.record(&one, Duration::from_micros(micros)));
        for (part, exact) in [(0.0, 1.0), (0.001, 1.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)]
        {
            let found = store.quantile(part).unwrap().as_secs_f64() * 1e6;
            assert!((exact..exact * 1.2).contains(&found), "{part}: {found} is not {exact}");
        }
        latencies.record(&one, Duration::from_secs(100));
        assert_eq!(store.quantile(1.0), Some(Duration::from_secs(16)));
    }
}
