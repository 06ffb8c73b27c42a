//! The table of statistics as the gateway sees it.

use super::metric_help::metric_help;
use super::row::{Kind, Metric, Row};
use super::table::visit_metrics;
use crate::process::version;
use crate::server::Server;
use larder_gateway::Sample;

/// Visits all metrics but latencies.
pub(crate) fn samples(server: &Server, visit: &mut dyn FnMut(Sample)) {
    visit(BUILD_INFO);
    visit_metrics(server, &mut |row, metric, value| visit(sample(row, metric, value)));
}

const BUILD_INFO: Sample = Sample {
    name: "larder_build_info",
    labels: &[("version", version::LARDER), ("memcached", version::MEMCACHED_LEVEL)],
    help: "Release of the server, and of memcached whose behaviour it has; always 1.",
    kind: larder_gateway::Kind::Gauge,
    value: 1.0,
};

fn sample(row: &Row, Metric { name, labels }: Metric, value: f64) -> Sample {
    let kind = match row.kind {
        Kind::Counter => larder_gateway::Kind::Counter,
        Kind::Gauge | Kind::Text | Kind::Constant => larder_gateway::Kind::Gauge,
    };
    Sample { name, labels, help: metric_help(row, name), kind, value }
}
