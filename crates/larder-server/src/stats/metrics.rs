//! The metrics of the table of statistics, for the gateway.

use super::metric_help::metric_help;
use super::row::{Kind, Metric, Row};
use super::table::visit_metrics;
use crate::process::version;
use crate::server::Server;
use larder_gateway::MetricSample;

/// Calls `visit` with the versions of the server and with every metric of the table of statistics.
pub(crate) fn samples(server: &Server, visit: &mut dyn FnMut(MetricSample)) {
    visit(BUILD_INFO);
    visit_metrics(server, &mut |row, metric, value| visit(sample(row, metric, value)));
}

const BUILD_INFO: MetricSample = MetricSample {
    name: "larder_build_info",
    labels: &[("version", version::LARDER), ("memcached", version::MEMCACHED_LEVEL)],
    help: "Versions of the server and of the compatible memcached release; always 1.",
    kind: larder_gateway::MetricKind::Gauge,
    value: 1.0,
};

fn sample(row: &Row, Metric { name, labels }: Metric, value: f64) -> MetricSample {
    let kind = match row.kind {
        Kind::Counter => larder_gateway::MetricKind::Counter,
        Kind::Gauge | Kind::Text | Kind::Constant => larder_gateway::MetricKind::Gauge,
    };
    MetricSample { name, labels, help: metric_help(row, name), kind, value }
}
