//! Latency histograms with classic buckets, whose bounds are powers of two, and native buckets, which are those
//! of [`Histogram`]. Only the protobuf format has native buckets.

use larder_operations::{CommandClass, Histogram, Latencies};
use prometheus_client::encoding::{
    DescriptorEncoder, NativeHistogram, NativeHistogramBuckets, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use std::fmt;

const NAME: &str = "larder_command_duration_seconds";
const HELP: &str = "Time from the event that reported a request until its answer was given to the \
                    kernel, by class of command.";
/// Native buckets grow by the fourth root of two.
const SCHEMA: i32 = 2;
const _: () = assert!(1 << SCHEMA == Histogram::PER_OCTAVE);

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, latencies: &Latencies) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(NAME, HELP, None, MetricType::Histogram)?;
    for class in CommandClass::ALL {
        let (histogram, labels) = (latencies.of(class), [("class", class.name())]);
        // Read the buckets once, so that the count agrees with classic and native buckets.
        let buckets: Vec<u64> = histogram.buckets().collect();
        let native = Native::new(&buckets);
        metric.encode_family(&labels)?.encode_histogram_with_native::<NoLabelSet>(
            histogram.sum().as_secs_f64(),
            buckets.iter().sum(),
            &classic(&buckets),
            None,
            native.encoded(),
        )?;
    }
    Ok(())
}

/// Classic buckets: upper bounds in seconds, with the number of requests in each bucket.
fn classic(buckets: &[u64]) -> Vec<(f64, u64)> {
    let (first, rest) = buckets.split_at_checked(1).unwrap_or_default();
    // The last chunk is the bucket without a bound.
    let sums = rest.chunks(Histogram::PER_OCTAVE.unsigned_abs() as usize);
    let counts = std::iter::once(first).chain(sums).map(|counts| counts.iter().sum());
    let bounds =
        (Histogram::OCTAVE_MIN..=Histogram::OCTAVE_MAX).map(|octave| f64::from(octave).exp2());
    bounds.chain([f64::INFINITY]).zip(counts).collect()
}

/// Native buckets: one span from the first non-empty bucket to the last one.
struct Native {
    /// The number of requests in the zero bucket, which ends at the first bound.
    zero_count: u64,
    /// The index of the first bucket and the number of buckets. Empty if there are no requests in positive buckets.
    spans: Vec<(i32, u32)>,
    /// The count of the first bucket, then the differences between the counts of adjacent buckets.
    deltas: Vec<i64>,
}

impl Native {
    fn new(buckets: &[u64]) -> Self {
        let (zero, positive) = buckets.split_first().unwrap_or((&0, &[]));
        let Some(from) = positive.iter().position(|&count| count > 0) else {
            return Self { zero_count: *zero, spans: Vec::new(), deltas: Vec::new() };
        };
        let to = positive.iter().rposition(|&count| count > 0).unwrap_or(from);
        let counts = positive.get(from..=to).unwrap_or_default();
        let mut before = 0;
        let deltas = counts.iter().map(|count| {
            let count = count.cast_signed();
            count - std::mem::replace(&mut before, count)
        });
        let deltas = deltas.collect();
        // In the schema, the bucket with index 0 ends at one second. `positive` starts after the first bound.
        let first = Histogram::OCTAVE_MIN * Histogram::PER_OCTAVE + 1;
        let offset = first + i32::try_from(from).unwrap_or_default();
        let len = u32::try_from(counts.len()).unwrap_or_default();
        Self { zero_count: *zero, spans: vec![(offset, len)], deltas }
    }

    fn encoded(&self) -> NativeHistogram<'_> {
        NativeHistogram {
            schema: SCHEMA,
            zero_threshold: f64::from(Histogram::OCTAVE_MIN).exp2(),
            zero_count: self.zero_count,
            negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
            positive: NativeHistogramBuckets { spans: &self.spans, deltas: &self.deltas },
            created: None,
        }
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
        let filled: Vec<_> = classic.into_iter().filter(|(_, count)| *count > 0).collect();
        let expected = [(0.5_f64.powi(20), 1), (0.25, 1), (0.5, 1), (1.0, 1), (16.0, 1)];
        assert_eq!(filled, [&expected[..], &[(f64::INFINITY, 1)]].concat());
    }

    /// Computes the count of the bucket with index `i` and upper bound 2^(i/4) from spans and deltas.
    fn at(native: &Native, i: i32) -> i64 {
        let Some(&(offset, len)) = native.spans.first() else { return 0 };
        let index = usize::try_from(i - offset).ok().filter(|index| *index < len as usize);
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
        assert_eq!(native.deltas.len(), native.spans[0].1 as usize);
        let empty = Native::new(&buckets(&[]));
        assert!(empty.spans.is_empty() && empty.deltas.is_empty());
    }
}
