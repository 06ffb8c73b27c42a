//! The messages of Prometheus's protobuf format, `io.prometheus.client`, that the server's metrics
//! use:
//! <https://github.com/prometheus/prometheus/blob/main/prompb/io/prometheus/client/metrics.proto>.
//! The writers of all formats read these messages. The messages are declared here, because
//! generating them from their description would require a protobuf compiler in every build.

use prost::{Enumeration, Message};

/// A metric with all its labels.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricFamily {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) help: String,
    #[prost(enumeration = "MetricType", tag = "3")]
    pub(super) r#type: i32,
    #[prost(message, repeated, tag = "4")]
    pub(super) metric: Vec<Metric>,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

/// A metric's value for one set of labels.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub(super) label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub(super) gauge: Option<Gauge>,
    #[prost(message, optional, tag = "3")]
    pub(super) counter: Option<Counter>,
    #[prost(message, optional, tag = "7")]
    pub(super) histogram: Option<Histogram>,
}

/// A label.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LabelPair {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

impl LabelPair {
    /// Builds labels from names and values.
    pub(super) fn all(pairs: &[(&str, &str)]) -> Vec<Self> {
        pairs.iter().map(|(name, value)| Self::new(name, value)).collect()
    }

    pub(super) fn new(name: &str, value: &str) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// The value of a gauge.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Gauge {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
}

/// The value of a counter.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Counter {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
}

/// A histogram with classic and native buckets.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(uint64, tag = "1")]
    pub(super) sample_count: u64,
    #[prost(double, tag = "2")]
    pub(super) sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    pub(super) bucket: Vec<Bucket>,
    /// Native bucket `i` ends at 2^(i / 2^schema).
    #[prost(sint32, tag = "5")]
    pub(super) schema: i32,
    /// The bound of the zero bucket.
    #[prost(double, tag = "6")]
    pub(super) zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    pub(super) zero_count: u64,
    /// The spans of native buckets for values above 0. Buckets outside of the spans are empty.
    #[prost(message, repeated, tag = "12")]
    pub(super) positive_span: Vec<BucketSpan>,
    /// The count of the first bucket, then the differences between the counts of adjacent buckets.
    #[prost(sint64, repeated, tag = "13")]
    pub(super) positive_delta: Vec<i64>,
}

/// A classic bucket.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Bucket {
    #[prost(uint64, tag = "1")]
    pub(super) cumulative_count: u64,
    /// The largest value in the bucket.
    #[prost(double, tag = "2")]
    pub(super) upper_bound: f64,
}

/// Adjacent native buckets.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct BucketSpan {
    /// The index of the first bucket; in later spans, the number of buckets between the previous
    /// span and this one.
    #[prost(sint32, tag = "1")]
    pub(super) offset: i32,
    /// The number of buckets.
    #[prost(uint32, tag = "2")]
    pub(super) length: u32,
}
