//! Rows of `stats slabs`: the classes of `stats items`, with the slab pages that memcached would
//! need. Larder has no slab pages, so these rows are not metrics.

use crate::stats::row::Row;
use crate::stats::row::Source::{Class, Server, Slab};
use crate::stats::row::Unit::Bytes;

pub(in crate::stats) const CLASS: &[Row] = &[
    Row::gauge(
        "chunk_size",
        Slab(|s| s.chunk_size),
        "Maximum size of an item of the class, scaled down if memcached would use more than `limit_maxbytes` for all items.",
    )
    .unit(Bytes),
    Row::gauge("chunks_per_page", Slab(|s| s.chunks_per_page), "Chunks in a page of 1 MiB."),
    Row::gauge("total_pages", Slab(|s| s.pages), "Pages of chunks of this size for the items; rounded down if the cache is full."),
    Row::gauge("total_chunks", Slab(|s| s.chunks), "Chunks in these pages; equal to `used_chunks` if the cache is full."),
    Row::gauge("used_chunks", Slab(|s| s.used_chunks), "Chunks that the items would use."),
    Row::gauge(
        "free_chunks",
        Slab(|s| s.chunks - s.used_chunks),
        "Chunks in these pages that would be free.",
    ),
    Row::constant("free_chunks_end", "0", "Every page is divided into chunks."),
    Row::counter("get_hits", Class(|c| &c.get_hits), "Keys that were looked up and found."),
    Row::counter("cmd_set", Class(|c| &c.cmd_set), "Values that were sent to be stored."),
    Row::counter("delete_hits", Class(|c| &c.delete_hits), "Keys that were deleted."),
    Row::counter("incr_hits", Class(|c| &c.incr_hits), "Numbers that were incremented."),
    Row::counter("decr_hits", Class(|c| &c.decr_hits), "Numbers that were decremented."),
    Row::counter("cas_hits", Class(|c| &c.cas_hits), "Stores whose CAS matched."),
    Row::counter(
        "cas_badval",
        Class(|c| &c.cas_badval),
        "Stores refused because the CAS did not match.",
    ),
    Row::counter("touch_hits", Class(|c| &c.touch_hits), "Keys whose expiry was changed."),
];

pub(in crate::stats) const TOTALS: &[Row] = &[
    Row::gauge(
        "active_slabs",
        Server(|s| s.gauges().classes.iter().filter(|gauges| gauges.items > 0).count().into()),
        "Classes with items.",
    ),
    Row::gauge(
        "total_malloced",
        Server(|s| s.gauges().used_bytes.into()),
        "Memory of items and index.",
    )
    .unit(Bytes)
    .metric("larder_memory_used_bytes", &[]),
];
