//! Latency histograms for Prometheus, which has two kinds of buckets. The bounds of the classic
//! buckets are powers of two. The native buckets are the finer buckets of [`Latency`]. Only the
//! protobuf format contains native buckets.

use super::model::{Bucket, BucketSpan, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use larder_operations::{CommandClass, Histogram as Latency, Latencies};

const NAME: &str = "larder_command_duration_seconds";
const HELP: &str = "Time from the event that reported a request until its answer was given to the \
                    kernel, by class of command.";
/// The resolution of the native buckets, as a schema number of Prometheus. With schema 2, each
/// bound is the previous bound times the fourth root of two.
const SCHEMA: i32 = 2;
const _: () = assert!(1 << SCHEMA == Latency::PER_OCTAVE);

pub(super) fn family(latencies: &Latencies) -> MetricFamily {
    let of_class = |class: CommandClass| Metric {
        label: LabelPair::all(&[("class", class.name())]),
        histogram: Some(histogram(latencies.of(class))),
        ..Metric::default()
    };
    MetricFamily {
        name: NAME.to_owned(),
        help: HELP.to_owned(),
        r#type: MetricType::Histogram.into(),
        metric: CommandClass::ALL.into_iter().map(of_class).collect(),
    }
}

fn histogram(latency: &Latency) -> Histogram {
    // Read the buckets once, so that the count agrees with classic and native buckets.
    let buckets: Vec<u64> = latency.buckets().collect();
    let native = Native::new(&buckets);
    Histogram {
        sample_count: buckets.iter().sum(),
        sample_sum: latency.sum().as_secs_f64(),
        bucket: classic(&buckets),
        schema: SCHEMA,
        zero_threshold: f64::from(Latency::OCTAVE_MIN).exp2(),
        zero_count: native.zero_count,
        positive_span: native.span.into_iter().collect(),
        positive_delta: native.deltas,
    }
}

/// Converts the counts of [`Latency`] to classic buckets, whose bounds are in seconds.
fn classic(buckets: &[u64]) -> Vec<Bucket> {
    let (first, rest) = buckets.split_at_checked(1).unwrap_or_default();
    // The last chunk is the bucket without an upper bound.
    let sums = rest.chunks(Latency::PER_OCTAVE.unsigned_abs() as usize);
    let counts = std::iter::once(first).chain(sums).map(|counts| counts.iter().sum::<u64>());
    let bounds = (Latency::OCTAVE_MIN..=Latency::OCTAVE_MAX).map(|octave| f64::from(octave).exp2());
    let mut cumulative_count = 0;
    let bucket = |(upper_bound, count)| {
        cumulative_count += count;
        Bucket { cumulative_count, upper_bound }
    };
    bounds.chain([f64::INFINITY]).zip(counts).map(bucket).collect()
}

/// The native buckets: one span from the first non-empty bucket to the last one.
struct Native {
    /// The number of requests in the zero bucket, which ends at the first bound.
    zero_count: u64,
    /// The span of the positive buckets; `None` if there are no requests in them.
    span: Option<BucketSpan>,
    /// The count of the first bucket, then the differences between the counts of adjacent buckets.
    deltas: Vec<i64>,
}

impl Native {
    fn new(buckets: &[u64]) -> Self {
        let (zero, positive) = buckets.split_first().unwrap_or((&0, &[]));
        let Some(from) = positive.iter().position(|&count| count > 0) else {
            return Self { zero_count: *zero, span: None, deltas: Vec::new() };
        };
        let to = positive.iter().rposition(|&count| count > 0).unwrap_or(from);
        let counts = positive.get(from..=to).unwrap_or_default();
        let mut before = 0;
        let deltas = counts.iter().map(|count| {
            let count = count.cast_signed();
            count - std::mem::replace(&mut before, count)
        });
        let deltas = deltas.collect();
        // The index of the first bucket in `positive`, in Prometheus's numbering: the bucket with
        // index 0 ends at one second. `positive` starts after the zero bucket.
        let first = Latency::OCTAVE_MIN * Latency::PER_OCTAVE + 1;
        let offset = first + i32::try_from(from).unwrap_or_default();
        let length = u32::try_from(counts.len()).unwrap_or_default();
        Self { zero_count: *zero, span: Some(BucketSpan { offset, length }), deltas }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_operations::AnsweredCounts;
    use std::time::Duration;

    fn buckets(times: &[Duration]) -> Vec<u64> {
        let (latencies, mut one) = (Latencies::default(), AnsweredCounts::default());
        one.add(CommandClass::Get, 1);
        times.iter().for_each(|time| latencies.record(&one, *time));
        latencies.of(CommandClass::Get).buckets().collect()
    }

    #[test]
    fn classic_bounds_are_powers_of_two() {
        let classic = classic(&buckets(&[
            Duration::from_nanos(900),
            Duration::from_millis(250),
            Duration::from_millis(251),
            Duration::from_secs(1),
            Duration::from_secs(16),
            Duration::from_secs(17),
        ]));
        assert_eq!(classic.len(), 26);
        // Select the non-empty buckets: the cumulative count of such a bucket exceeds that of the
        // previous bucket.
        let before = [0].into_iter().chain(classic.iter().map(|bucket| bucket.cumulative_count));
        let filled =
            classic.iter().zip(before).filter(|(bucket, before)| bucket.cumulative_count > *before);
        let filled: Vec<_> =
            filled.map(|(bucket, _)| (bucket.upper_bound, bucket.cumulative_count)).collect();
        let expected = [(0.5_f64.powi(20), 1), (0.25, 2), (0.5, 3), (1.0, 4), (16.0, 5)];
        assert_eq!(filled, [&expected[..], &[(f64::INFINITY, 6)]].concat());
    }

    /// Computes the count of the bucket with index `i` and upper bound 2^(i/4) from spans and
    /// deltas.
    fn at(native: &Native, i: i32) -> i64 {
        let Some(BucketSpan { offset, length }) = native.span else { return 0 };
        let index = usize::try_from(i - offset).ok().filter(|index| *index < length as usize);
        index.map_or(0, |index| native.deltas[..=index].iter().sum())
    }

    #[test]
    fn native_buckets_have_the_bounds_of_the_schema() {
        let second = Duration::from_secs(1);
        let times =
            [second / 2, second / 2, second, second * 8, Duration::from_nanos(500), second * 99];
        let native = Native::new(&buckets(&times));
        assert_eq!(native.zero_count, 1);
        let counts = [-5, -4, -3, 0, 1, 12, 17].map(|i| at(&native, i));
        assert_eq!(counts, [0, 2, 0, 1, 0, 1, 1]);
        assert_eq!(native.deltas.len(), native.span.unwrap().length as usize);
        let empty = Native::new(&buckets(&[]));
        assert!(empty.span.is_none() && empty.deltas.is_empty());
    }
}
