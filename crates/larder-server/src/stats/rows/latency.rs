//! Rows of `stats latency`, Larder's own: the server-side latency of each command class. Metrics
//! export all histogram buckets instead.

use crate::stats::row::Unit::Microseconds;
use crate::stats::row::{Row, Source, Value};
use larder_operations::Histogram;

pub(in crate::stats) const ROWS: &[Row] = &[
    Row::counter("count", Source::Latency(|h| h.count().into()), "Requests that were answered."),
    quantile_row("p50_us", |h| quantile(h, 0.5), "Median latency."),
    quantile_row("p90_us", |h| quantile(h, 0.9), "90th percentile of the latency."),
    quantile_row("p99_us", |h| quantile(h, 0.99), "99th percentile of the latency."),
    quantile_row("p999_us", |h| quantile(h, 0.999), "99.9th percentile of the latency."),
    quantile_row("max_us", |h| quantile(h, 1.0), "Maximum latency."),
    quantile_row("mean_us", mean, "Mean latency."),
];

const fn quantile_row(
    name: &'static str,
    read: fn(&Histogram) -> Value,
    help: &'static str,
) -> Row {
    Row::gauge(name, Source::Latency(read), help).unit(Microseconds)
}

fn quantile(histogram: &Histogram, part: f64) -> Value {
    micros(histogram.quantile(part).unwrap_or_default().as_secs_f64())
}

fn mean(histogram: &Histogram) -> Value {
    micros(histogram.sum().as_secs_f64() / histogram.count().max(1) as f64)
}

fn micros(secs: f64) -> Value {
    Value::Real(secs * 1e6, Some(1))
}
