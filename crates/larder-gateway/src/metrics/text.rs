//! The text formats: Prometheus's 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats>), and OpenMetrics 1.0
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec>).

use super::model::{Histogram, LabelPair, MetricFamily, MetricType};
use std::fmt::{Result, Write};

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Prometheus,
    OpenMetrics,
}

/// Writes metrics. In OpenMetrics, a counter's name is its sample's name without `_total`.
pub(super) fn encode(families: &[MetricFamily], dialect: Dialect) -> String {
    let mut text = String::new();
    for family in families {
        // Writing to a string does not fail.
        let _ = write_family(&mut text, family, dialect);
    }
    if dialect == Dialect::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn write_family(text: &mut String, family: &MetricFamily, dialect: Dialect) -> Result {
    let sample = &family.name;
    let name = match dialect {
        Dialect::Prometheus => sample,
        Dialect::OpenMetrics => sample.strip_suffix("_total").unwrap_or(sample),
    };
    let kind = match family.r#type() {
        MetricType::Counter => "counter",
        MetricType::Gauge => "gauge",
        MetricType::Histogram => "histogram",
    };
    let mut help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
    if dialect == Dialect::OpenMetrics {
        help = help.replace('"', "\\\"");
    }
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
    for metric in &family.metric {
        let labels = labels(&metric.label);
        if let Some(counter) = &metric.counter {
            write_sample(text, sample, &labels, counter.value)?;
        }
        if let Some(gauge) = &metric.gauge {
            write_sample(text, sample, &labels, gauge.value)?;
        }
        if let Some(histogram) = &metric.histogram {
            write_histogram(text, sample, &labels, histogram, dialect)?;
        }
    }
    Ok(())
}

/// Writes a histogram's cumulative buckets, its sum and its count.
fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    histogram: &Histogram,
    dialect: Dialect,
) -> Result {
    for bucket in &histogram.bucket {
        let mut bound = number(bucket.upper_bound);
        // OpenMetrics requires that a bound is written as a floating-point number.
        if dialect == Dialect::OpenMetrics && bound.bytes().all(|byte| byte.is_ascii_digit()) {
            bound.push_str(".0");
        }
        let separator = if labels.is_empty() { "" } else { "," };
        let count = bucket.cumulative_count;
        writeln!(text, "{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {count}")?;
    }
    write_sample(text, &format!("{name}_sum"), labels, histogram.sample_sum)?;
    write_sample(text, &format!("{name}_count"), labels, histogram.sample_count as f64)
}

fn write_sample(text: &mut String, name: &str, labels: &str, value: f64) -> Result {
    let value = number(value);
    if labels.is_empty() {
        writeln!(text, "{name} {value}")
    } else {
        writeln!(text, "{name}{{{labels}}} {value}")
    }
}

/// Formats labels as they appear between the braces of a sample in Prometheus's text format.
fn labels(labels: &[LabelPair]) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs = labels.iter().map(|label| format!("{}=\"{}\"", label.name, escaped(&label.value)));
    pairs.collect::<Vec<_>>().join(",")
}

/// Formats a number so that Go can parse it.
fn number(value: f64) -> String {
    if value == f64::INFINITY { "+Inf".to_owned() } else { value.to_string() }
}
