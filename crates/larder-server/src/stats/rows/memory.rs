//! Rows of `stats memory`, Larder's own: memory usage, items removed by reason, and dropped tags.

use super::general::{MEMORY, REMOVED};
use crate::process::platform;
use crate::stats::row::Source::{Engine, Server};
use crate::stats::row::Unit::{Bytes, Seconds};
use crate::stats::row::{Condition, Row};

const SEGMENTS: Condition = Condition::new("with the segment engine", |s, _| s.curve().is_some());
const TAGS: Condition =
    Condition::new("once an item has had a tag", |s, _| s.gauges().tags_bytes > 0);

pub(in crate::stats) const ROWS: &[Row] = &[
    Row::gauge(
        "items_bytes",
        Server(|s| s.items_memory().into()),
        "Memory of items, including the free part of open segments.",
    )
    .unit(Bytes)
    .metric(MEMORY, &[("use", "items")]),
    Row::gauge(
        "dead_bytes",
        Server(|s| s.gauges().dead_bytes.into()),
        "Memory of overwritten or removed items that is not reused yet.",
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
        "Unused memory, up to the limit.",
    )
    .unit(Bytes)
    .metric(MEMORY, &[("use", "free")]),
    Row::gauge(
        "resident_bytes",
        Server(|_| platform::resident_bytes().into()),
        "Larder's own: resident memory of the process; 0 outside Linux.",
    )
    .unit(Bytes),
    Row::gauge(
        "eviction_age",
        Server(|s| s.gauges().evicted_time.into()),
        "Time between the last access and the eviction of the most recently evicted item; 0 before the first eviction.",
    )
    .unit(Seconds)
    .metric("larder_eviction_age_seconds", &[])
    .shown(SEGMENTS),
    Row::counter(
        "removed_expired",
        Engine(|c| c.reclaimed - c.reclaimed_flushed - c.reclaimed_untagged),
        "Expired items that were removed.",
    )
    .metric(REMOVED, &[("reason", "expired")]),
    Row::counter(
        "removed_flushed",
        Engine(|c| c.reclaimed_flushed),
        "Flushed items that were removed.",
    )
    .metric(REMOVED, &[("reason", "flushed")]),
    Row::counter(
        "removed_tag",
        Engine(|c| c.reclaimed_untagged),
        "Items that were removed because one of their tags was invalidated.",
    )
    .metric(REMOVED, &[("reason", "tag")])
    .shown(TAGS),
    Row::counter(
        "tags_dropped",
        Server(|s| s.gauges().tags_dropped.into()),
        "Invalidated tags, including those of earlier processes, and tags that were displaced from the table.",
    )
    .metric("larder_tags_dropped_total", &[])
    .shown(TAGS),
    Row::counter(
        "tags_displaced",
        Server(|s| s.gauges().tags_displaced.into()),
        "Tags that were displaced from the full table of tags; their items are flushed early.",
    )
    .metric("larder_tags_displaced_total", &[])
    .shown(TAGS),
];
