//! The server's metrics, for the gateway. Most come from the statistics table.

use super::metric_help::metric_help;
use super::row::{Kind, Metric, Row};
use super::rows::cluster;
use super::table::visit_metrics;
use crate::process::version;
use crate::server::Server;
use larder_cluster::Group;
use larder_gateway::MetricSample;
use std::collections::BTreeMap;

/// Calls `visit` with every metric: the server's versions, this node's membership in a group, each
/// follower's lag, and the metrics from the statistics table.
pub(crate) fn samples(server: &Server, visit: &mut dyn FnMut(MetricSample)) {
    visit(BUILD_INFO);
    if let Some(group) = &server.node.group {
        visit(member_info(group));
    }
    follower_lags(server).into_iter().for_each(&mut *visit);
    visit_metrics(server, &mut |row, metric, value| visit(sample(row, metric, value)));
}

const BUILD_INFO: MetricSample = MetricSample {
    name: "larder_build_info",
    labels: &[("version", version::LARDER), ("memcached", version::MEMCACHED_LEVEL)],
    dynamic_labels: Vec::new(),
    help: "Versions of the server and of the compatible memcached release; always 1.",
    kind: larder_gateway::MetricKind::Gauge,
    value: 1.0,
};

/// Returns this node's info metric. Its labels contain the names of the node and its leader.
fn member_info(group: &Group) -> MetricSample {
    let node = group.me().node;
    let leader = cluster::leader(&group.role(), &node);
    let (cluster, group) = (group.name.cluster.clone(), group.name.group.clone());
    MetricSample {
        name: "larder_cluster_info",
        labels: &[],
        dynamic_labels: vec![
            ("cluster", cluster),
            ("group", group),
            ("node", node),
            ("leader", leader),
        ],
        help: "Names of the cluster, the group, this node and its leader; always 1.",
        kind: larder_gateway::MetricKind::Gauge,
        value: 1.0,
    }
}

/// Returns the replication lag of each follower. If several followers have the same name and host,
/// returns the largest lag, because Prometheus rejects a scrape with duplicate labels.
fn follower_lags(server: &Server) -> Vec<MetricSample> {
    let mut lags: BTreeMap<(String, String), f64> = BTreeMap::new();
    for follower in server.node.replication.followers() {
        let host = follower.address.rsplit_once(':').map_or("", |(host, _)| host);
        let lag = lags.entry((follower.name.clone(), host.to_owned())).or_default();
        *lag = lag.max(follower.stats().lag.as_secs_f64());
    }
    let sample = |((follower, host), value)| MetricSample {
        name: "larder_replication_follower_lag_seconds",
        labels: &[],
        dynamic_labels: vec![("follower", follower), ("host", host)],
        help: "Replication lag of a connected follower.",
        kind: larder_gateway::MetricKind::Gauge,
        value,
    };
    lags.into_iter().map(sample).collect()
}

fn sample(row: &Row, Metric { name, labels }: Metric, value: f64) -> MetricSample {
    let kind = match row.kind {
        Kind::Counter => larder_gateway::MetricKind::Counter,
        Kind::Gauge | Kind::Text | Kind::Constant => larder_gateway::MetricKind::Gauge,
    };
    let help = metric_help(row, name);
    MetricSample { name, labels, dynamic_labels: Vec::new(), help, kind, value }
}
