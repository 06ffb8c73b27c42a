//! The metrics of HTTP and gRPC.

use crate::server_view::{Kind, Sample};
use crate::web_counts::WebCounts;

/// Visits the metrics; none unless HTTP or gRPC is served.
pub(super) fn samples(counts: &WebCounts, visit: &mut dyn FnMut(Sample)) {
    if !counts.is_used() {
        return;
    }
    let mut show = |name, labels, help, kind, value: u64| {
        visit(Sample { name, labels, help, kind, value: value as f64 });
    };
    show(
        "larder_connections",
        &[("interface", "web"), ("state", "open")],
        "Connections that are open.",
        Kind::Gauge,
        counts.open() as u64,
    );
    show(
        "larder_connections_accepted_total",
        &[("interface", "web")],
        "Connections that were accepted.",
        Kind::Counter,
        counts.accepted(),
    );
    let (name, help) = ("larder_requests_total", "Requests of HTTP and gRPC that were begun.");
    let (http, grpc) = counts.requests();
    show(name, &[("interface", "http")], help, Kind::Counter, http);
    show(name, &[("interface", "grpc")], help, Kind::Counter, grpc);
}
