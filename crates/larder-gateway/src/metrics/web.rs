//! Metrics of HTTP and gRPC.

use crate::server_view::{MetricKind, MetricSample};
use crate::web_counts::WebCounts;

/// Visits the samples of HTTP and gRPC. Visits no samples if the server serves neither protocol.
pub(super) fn samples(counts: &WebCounts, visit: &mut dyn FnMut(MetricSample)) {
    if !counts.is_used() {
        return;
    }
    let mut show = |name, labels, help, kind, value: u64| {
        let value = value as f64;
        visit(MetricSample { name, labels, dynamic_labels: Vec::new(), help, kind, value });
    };
    show(
        "larder_connections",
        &[("interface", "web"), ("state", "open")],
        "Connections that are open.",
        MetricKind::Gauge,
        counts.open() as u64,
    );
    show(
        "larder_connections_accepted_total",
        &[("interface", "web")],
        "Connections that were accepted.",
        MetricKind::Counter,
        counts.accepted(),
    );
    let (name, help) = ("larder_requests_total", "Requests of HTTP and gRPC that were started.");
    let (http, grpc) = counts.requests();
    show(name, &[("interface", "http")], help, MetricKind::Counter, http);
    show(name, &[("interface", "grpc")], help, MetricKind::Counter, grpc);
}
