//! Prometheus' text format 0.0.4, which `prometheus-client` does not write:
//! <https://prometheus.io/docs/instrumenting/exposition_formats>

use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    Histogram, LabelPair, MetricFamily, MetricType,
};
use std::fmt::Write;

pub(super) fn encode(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        // Writing to a string does not fail.
        let _ = write_family(&mut text, family);
    }
    text
}

fn write_family(text: &mut String, family: &MetricFamily) -> std::fmt::Result {
    let name = &family.name;
    let kind = match family.r#type() {
        MetricType::Counter => "counter",
        MetricType::Gauge => "gauge",
        MetricType::Histogram => "histogram",
        _ => "untyped",
    };
    let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
    for metric in &family.metric {
        let labels = labels(&metric.label);
        if let Some(counter) = &metric.counter {
            write_sample(text, name, &labels, counter.value)?;
        }
        if let Some(gauge) = &metric.gauge {
            write_sample(text, name, &labels, gauge.value)?;
        }
        if let Some(histogram) = &metric.histogram {
            write_histogram(text, name, &labels, histogram)?;
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
) -> std::fmt::Result {
    for bucket in &histogram.bucket {
        let bound = number(bucket.upper_bound);
        let separator = if labels.is_empty() { "" } else { "," };
        let count = bucket.cumulative_count;
        writeln!(text, "{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {count}")?;
    }
    write_sample(text, &format!("{name}_sum"), labels, histogram.sample_sum)?;
    write_sample(text, &format!("{name}_count"), labels, histogram.sample_count as f64)
}

fn write_sample(text: &mut String, name: &str, labels: &str, value: f64) -> std::fmt::Result {
    let value = number(value);
    if labels.is_empty() {
        writeln!(text, "{name} {value}")
    } else {
        writeln!(text, "{name}{{{labels}}} {value}")
    }
}

/// Formats labels for the text between braces.
fn labels(labels: &[LabelPair]) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs = labels.iter().map(|label| format!("{}=\"{}\"", label.name, escaped(&label.value)));
    pairs.collect::<Vec<_>>().join(",")
}

/// Formats a number as Go parses it.
fn number(value: f64) -> String {
    if value == f64::INFINITY { "+Inf".to_owned() } else { value.to_string() }
}
