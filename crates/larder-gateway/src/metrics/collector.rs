//! The collector of the server's metrics for `prometheus-client`. It groups samples by metric, as the encoders
//! require.

use super::{latency, process, web};
use crate::server_view::{MetricKind, MetricSample, ServerView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Collects samples at each scrape: those of the server, the gateway and the process, and the latency histograms.
pub(super) struct ServerCollector(pub(super) Arc<dyn ServerView>);

impl fmt::Debug for ServerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCollector")
    }
}

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics: BTreeMap<&str, Vec<MetricSample>> = BTreeMap::new();
        let mut add = |sample: MetricSample| metrics.entry(sample.name).or_default().push(sample);
        self.0.samples(&mut add);
        web::samples(self.0.web_counts(), &mut add);
        process::samples(&mut add);
        for (name, samples) in metrics {
            if let Some(first) = samples.first() {
                encode(&mut encoder, name, first, &samples)?;
            }
        }
        latency::encode(&mut encoder, &self.0.latencies())
    }
}

/// Encodes a metric. Removes `_total` from the name of a counter, because the encoder appends it.
fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    first: &MetricSample,
    samples: &[MetricSample],
) -> fmt::Result {
    let (name, kind) = match first.kind {
        MetricKind::Counter => (name.strip_suffix("_total").unwrap_or(name), MetricType::Counter),
        MetricKind::Gauge => (name, MetricType::Gauge),
    };
    let mut metric = encoder.encode_descriptor(name, first.help, None, kind)?;
    for sample in samples {
        if sample.labels.is_empty() {
            encode_value(&mut metric, sample)?;
        } else {
            encode_value(&mut metric.encode_family(&sample.labels)?, sample)?;
        }
    }
    Ok(())
}

fn encode_value(metric: &mut MetricEncoder<'_>, sample: &MetricSample) -> fmt::Result {
    match sample.kind {
        MetricKind::Counter => metric.encode_counter::<NoLabelSet, _, f64>(&sample.value, None),
        MetricKind::Gauge => metric.encode_gauge(&sample.value),
    }
}
