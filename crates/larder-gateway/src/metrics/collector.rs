//! Collects the metrics at each scrape: those of the server, the gateway and the process, and the
//! latency histograms.

use super::model::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use super::{latency, process, web};
use crate::server_view::{MetricKind, MetricSample, ServerView};
use std::collections::BTreeMap;

/// Returns all metrics: first the counters and gauges, sorted by name, then the histograms.
pub(super) fn collect(view: &dyn ServerView) -> Vec<MetricFamily> {
    let mut metrics: BTreeMap<&str, MetricFamily> = BTreeMap::new();
    let mut add = |sample: MetricSample| {
        metrics.entry(sample.name).or_insert_with(|| family(&sample)).metric.push(metric(&sample));
    };
    view.samples(&mut add);
    web::samples(view.web_counts(), &mut add);
    process::samples(&mut add);
    metrics.into_values().chain([latency::family(&view.latencies())]).collect()
}

fn family(sample: &MetricSample) -> MetricFamily {
    let kind = match sample.kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge => MetricType::Gauge,
    };
    MetricFamily {
        name: sample.name.to_owned(),
        help: sample.help.to_owned(),
        r#type: kind.into(),
        metric: Vec::new(),
    }
}

fn metric(sample: &MetricSample) -> Metric {
    let value = sample.value;
    let (counter, gauge) = match sample.kind {
        MetricKind::Counter => (Some(Counter { value }), None),
        MetricKind::Gauge => (None, Some(Gauge { value })),
    };
    let mut label = LabelPair::all(sample.labels);
    let dynamic = sample.dynamic_labels.iter();
    label.extend(dynamic.map(|(name, value)| LabelPair::new(name, value)));
    Metric { label, counter, gauge, histogram: None }
}
