//! Rows of `stats memory`, Larder's own: what memory is used for, and why items are removed.

use super::general::{MEMORY, REMOVED};
use crate::stats::row::Source::{Engine, Server};
use crate::stats::row::Unit::{Bytes, Seconds};
use crate::stats::row::{Condition, Row};
use crate::stats::snapshot::Snapshot;

const SEGMENTS: Condition = Condition::new("with the segment engine", |s, _| s.curve().is_some());
const TAGS: Condition =
    Condition::new("once an item has had a tag", |s, _| s.gauges().tags_bytes > 0);

pub(in crate::stats) const ROWS: &[Row] = &[
    Row::gauge(
        "items_bytes",
        Server(|s| items_bytes(s).into()),
        "Memory of items, with what is not filled yet of the segments that are written.",
    )
    .unit(Bytes)
    .metric(MEMORY, &[("use", "items")]),
    Row::gauge(
        "dead_bytes",
        Server(|s| s.gauges().dead_bytes.into()),
        "Memory of items that were overwritten or removed, until it is used again.",
    )
    .unit(Bytes)
    .metric(MEMORY, &[("use", "dead")])
    .shown(SEGMENTS),
    Row::gauge(
        "tags_bytes",
        Server(|s| s.gauges().tags_bytes.into()),
        "Memory of the table of tags.",
    )
    .unit(Bytes)
    .metric(MEMORY, &[("use", "tags")])
    .shown(TAGS),
    Row::gauge(
        "free_bytes",
        Server(|s| s.gauges().limit_bytes.saturating_sub(s.gauges().used_bytes).into()),
        "Memory that nothing uses, up to the limit.",
    )
    .unit(Bytes)
    .metric(MEMORY, &[("use", "free")]),
    Row::gauge(
        "eviction_age",
        Server(|s| s.gauges().evicted_time.into()),
        "Time from the last access of the item that was evicted last to its eviction; 0 before there is one.",
    )
    .unit(Seconds)
    .metric("larder_eviction_age_seconds", &[])
    .shown(SEGMENTS),
    Row::counter(
        "removed_expired",
        Engine(|c| c.reclaimed - c.reclaimed_flushed - c.reclaimed_untagged),
        "Items that were removed because they had expired.",
    )
    .metric(REMOVED, &[("reason", "expired")]),
    Row::counter(
        "removed_flushed",
        Engine(|c| c.reclaimed_flushed),
        "Items that were removed because all items had been flushed.",
    )
    .metric(REMOVED, &[("reason", "flushed")]),
    Row::counter(
        "removed_tag",
        Engine(|c| c.reclaimed_untagged),
        "Items that were removed because one of their tags had been dropped.",
    )
    .metric(REMOVED, &[("reason", "tag")])
    .shown(TAGS),
    Row::counter(
        "tags_dropped",
        Server(|s| s.gauges().tags_dropped.into()),
        "Tags that were dropped, also by earlier processes, and those that made room for others.",
    )
    .metric("larder_tags_dropped_total", &[])
    .shown(TAGS),
    Row::counter(
        "tags_displaced",
        Server(|s| s.gauges().tags_displaced.into()),
        "Tags that made room for others in the table of tags: their items are flushed early.",
    )
    .metric("larder_tags_displaced_total", &[])
    .shown(TAGS),
];

fn items_bytes(s: &Snapshot<'_>) -> u64 {
    let gauges = s.gauges();
    let others = gauges.index_bytes + gauges.dead_bytes + gauges.tags_bytes;
    gauges.used_bytes.saturating_sub(others)
}
