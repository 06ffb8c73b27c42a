//! Rows of `CLIENT TRACKING` in `stats`.

use crate::stats::row::Row;
use crate::stats::row::Source::Server;
use crate::stats::row::Unit::Bytes;

pub(in crate::stats) const ROWS: &[Row] = &[
    Row::gauge(
        "tracking_connections",
        Server(|s| s.tracking().connections.into()),
        "Larder's own: connections with `CLIENT TRACKING`, which learn when items change.",
    )
    .metric("larder_tracking_connections", &[]),
    Row::gauge(
        "tracking_keys",
        Server(|s| s.tracking().keys.into()),
        "Larder's own: keys that these connections have read, and that have not changed since.",
    )
    .metric("larder_tracking_keys", &[]),
    Row::gauge(
        "tracking_prefixes",
        Server(|s| s.tracking().prefixes.into()),
        "Larder's own: prefixes of keys that connections with `BCAST` track.",
    )
    .metric("larder_tracking_prefixes", &[]),
    Row::gauge(
        "tracking_bytes",
        Server(|s| s.server.connections.tracker.memory().into()),
        "Larder's own: memory of the table of these keys and of messages that wait; at most a quarter of the memory of all \
         connections.",
    )
    .unit(Bytes)
    .metric("larder_memory_bytes", &[("use", "tracking")]),
    Row::counter(
        "tracking_evicted_keys",
        Server(|s| s.tracking().evicted_keys.into()),
        "Larder's own: keys that were dropped from the table because it was full; the connections learn of it as of a change.",
    )
    .metric("larder_tracking_keys_evicted_total", &[]),
];
