//! Rows about the flash tier, in `stats`, `stats settings` and `stats extstore`.

use crate::stats::row::Source::{Page, Server};
use crate::stats::row::Unit::{Bytes, Microseconds, Seconds};
use crate::stats::row::{Condition, Row, Value};
use crate::stats::snapshot::Snapshot;
use larder_store::{FlashGauges, FlashSettings};

const FLASH: Condition = Condition::new("with `-o ext_path`", |s, _| s.flash_gauges().is_some());

const PAGES: &str = "larder_flash_pages";
const REWRITES: &str = "larder_flash_rewrites_total";
const ONE_QUEUE: &str = "Items that are rewritten are not sorted by their use.";

/// The flash tier's lookup counters, which appear among the command counters.
pub(in crate::stats) const LOOKUPS: &[Row] = &[
    Row::counter(
        "get_extstore",
        Server(|s| total(s, |f| f.get_extstore)),
        "Lookups that read from flash.",
    )
    .metric("larder_flash_lookups_total", &[])
    .shown(FLASH),
    Row::counter(
        "get_aborted_extstore",
        Server(|s| total(s, |f| f.get_aborted)),
        "Reads from flash that were aborted to free their memory or their page, or because they took too long.",
    )
    .metric("larder_flash_reads_aborted_total", &[])
    .shown(FLASH),
    Row::counter(
        "get_oom_extstore",
        Server(|s| total(s, |f| f.get_oom)),
        "Reads from flash that waited because all buffers were in use, and large values that were not read because of a lack of memory.",
    )
    .metric("larder_flash_reads_delayed_total", &[])
    .shown(FLASH),
    Row::counter(
        "recache_from_extstore",
        Server(|s| total(s, |f| f.recache)),
        "Items that were promoted from flash to memory because they were read again.",
    )
    .metric("larder_flash_items_recached_total", &[])
    .shown(FLASH),
    Row::counter(
        "miss_from_extstore",
        Server(|s| total(s, |f| f.miss)),
        "Lookups that missed because flash no longer had the item's bytes, or reading failed.",
    )
    .metric("larder_flash_misses_total", &[])
    .shown(FLASH),
    Row::counter(
        "badcrc_from_extstore",
        Server(|s| total(s, |f| f.badcrc)),
        "Misses of `miss_from_extstore` caused by a wrong checksum.",
    )
    .metric("larder_flash_checksum_errors_total", &[])
    .shown(FLASH),
];

/// The totals of the flash tier in `stats`.
pub(in crate::stats) const TOTALS: &[Row] = &[
    Row::counter(
        "extstore_memory_pressure",
        Server(|s| Value::Real(s.flash_total(|f| f.dropped) as f64, Some(2))),
        "Items that were evicted without a write to flash because the write queue was full.",
    )
    .metric("larder_flash_items_dropped_total", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_compact_lost",
        Server(|s| total(s, |f| f.compact_lost)),
        "Items that a rewrite of their page lost: expired, of a dropped tag, unreadable, or without memory for the copy.",
    )
    .metric(REWRITES, &[("result", "lost")])
    .shown(FLASH),
    Row::counter(
        "extstore_compact_rescues",
        Server(|s| total(s, |f| f.compact_rescues)),
        "Items that were rewritten to another page.",
    )
    .metric(REWRITES, &[("result", "kept")])
    .shown(FLASH),
    Row::constant("extstore_compact_resc_cold", "0", ONE_QUEUE).shown(FLASH),
    Row::constant("extstore_compact_resc_old", "0", ONE_QUEUE).shown(FLASH),
    Row::counter(
        "extstore_compact_skipped",
        Server(|s| total(s, |f| f.compact_skipped)),
        "Items that a rewrite of their page dropped because they had not been read.",
    )
    .metric(REWRITES, &[("result", "skipped")])
    .shown(FLASH),
    Row::counter(
        "extstore_page_allocs",
        Server(|s| total(s, |f| f.page_allocs)),
        "Pages that the server started to write.",
    )
    .metric("larder_flash_page_allocations_total", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_page_evictions",
        Server(|s| total(s, |f| f.page_evictions)),
        "Pages that were freed with live items in them.",
    )
    .metric("larder_flash_page_evictions_total", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_page_reclaims",
        Server(|s| total(s, |f| f.page_reclaims)),
        "Pages that were freed without evicting a live item: empty, rewritten or failed pages.",
    )
    .metric("larder_flash_page_reclaims_total", &[])
    .shown(FLASH),
    Row::gauge(
        "extstore_pages_free",
        Server(|s| total(s, |f| f.pages_free)),
        "Pages that can be written.",
    )
    .metric(PAGES, &[("state", "free")])
    .shown(FLASH),
    Row::gauge(
        "extstore_pages_used",
        Server(|s| total(s, |f| f.pages_used)),
        "Pages that contain items or are being written.",
    )
    .metric(PAGES, &[("state", "used")])
    .shown(FLASH),
    Row::counter(
        "extstore_objects_evicted",
        Server(|s| total(s, |f| f.objects_evicted)),
        "Live items that were evicted from flash, with their page or because the index was full.",
    )
    .metric("larder_flash_items_evicted_total", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_objects_read",
        Server(|s| total(s, |f| f.objects_read)),
        "Items that were read from flash.",
    )
    .metric("larder_flash_items_read_total", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_objects_written",
        Server(|s| total(s, |f| f.objects_written)),
        "Items that were written to flash.",
    )
    .metric("larder_flash_items_written_total", &[])
    .shown(FLASH),
    Row::gauge(
        "extstore_objects_used",
        Server(|s| total(s, |f| f.objects_used)),
        "Items on flash; `curr_items` includes them.",
    )
    .metric("larder_flash_items", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_bytes_evicted",
        Server(|s| total(s, |f| f.bytes_evicted)),
        "Bytes of live items that were evicted from flash, with their page or because the index was full.",
    )
    .unit(Bytes)
    .metric("larder_flash_evicted_bytes_total", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_bytes_written",
        Server(|s| total(s, |f| f.bytes_written)),
        "Bytes that were written to flash.",
    )
    .unit(Bytes)
    .metric("larder_flash_written_bytes_total", &[])
    .shown(FLASH),
    Row::counter(
        "extstore_bytes_read",
        Server(|s| total(s, |f| f.bytes_read)),
        "Bytes that were read from flash.",
    )
    .unit(Bytes)
    .metric("larder_flash_read_bytes_total", &[])
    .shown(FLASH),
    Row::gauge(
        "extstore_bytes_used",
        Server(|s| total(s, |f| f.bytes_used)),
        "Bytes of the items on flash, estimated from size classes: up to an eighth off if all items have the same length.",
    )
    .unit(Bytes)
    .metric("larder_flash_used_bytes", &[])
    .shown(FLASH),
    Row::gauge(
        "extstore_bytes_fragmented",
        Server(|s| total(s, |f| f.bytes_fragmented)),
        "Bytes of used pages that no item on flash occupies.",
    )
    .unit(Bytes)
    .metric("larder_flash_fragmented_bytes", &[])
    .shown(FLASH),
    Row::gauge(
        "extstore_limit_maxbytes",
        Server(|s| total(s, |f| f.page_count.saturating_mul(f.page_size))),
        "Bytes of all pages.",
    )
    .unit(Bytes)
    .metric("larder_flash_limit_bytes", &[])
    .shown(FLASH),
    Row::gauge(
        "extstore_io_queue",
        Server(|s| total(s, |f| f.io_queue)),
        "Reads and writes of flash in progress.",
    )
    .metric("larder_flash_io_queue", &[])
    .shown(FLASH),
];

/// The rows about the flash tier in `stats` that do not exist in memcached.
pub(in crate::stats) const OWN: &[Row] = &[Row::counter(
    "flash_returned",
    Server(|s| total(s, |f| f.returned)),
    "Larder's own: items that were promoted from flash to memory and evicted again without a write, \
     because the copy on flash was unchanged.",
)
.metric("larder_flash_items_returned_total", &[])
.shown(FLASH),
Row::counter(
    "flash_errors",
    Server(|s| s.flash_gauges().map_or(0, |flash| flash.failures).into()),
    "Larder's own: failed reads and writes of the flash device.",
)
.metric("larder_flash_errors_total", &[])
.shown(FLASH),
Row::gauge(
    "flash_off",
    Server(|s| Value::bit(s.flash_gauges().is_some_and(|flash| flash.is_off))),
    "Larder's own: 1 if the server has stopped using flash after too many errors, else 0.",
)
.metric("larder_flash_off", &[])
.shown(FLASH)];

/// The rows of `stats settings`. They are also shown without a flash tier.
pub(in crate::stats) const SETTINGS: &[Row] = &[
    Row::gauge(
        "ext_item_size",
        Server(|s| settings(s).item_size.into()),
        "Minimum size of items that are written to flash (`-o ext_item_size`).",
    )
    .unit(Bytes),
    Row::gauge(
        "ext_item_age",
        Server(|s| settings(s).item_age.unwrap_or(u32::MAX).into()),
        "The setting `-o ext_item_age`, in seconds; 4294967295: not set.",
    )
    .unit(Seconds),
    Row::gauge(
        "ext_low_ttl",
        Server(|s| settings(s).low_ttl.into()),
        "Items with a shorter TTL share pages (`-o ext_low_ttl`).",
    )
    .unit(Seconds),
    Row::gauge(
        "ext_recache_rate",
        Server(|s| settings(s).recache_rate.into()),
        "One in this many items that are read again is promoted to memory (`-o ext_recache_rate`); 0: none.",
    ),
    Row::gauge(
        "ext_wbuf_size",
        Server(|s| s.tuned_flash().shown.wbuf_size.into()),
        "Value of `-o ext_wbuf_size`, without effect.",
    )
    .unit(Bytes),
    Row::gauge(
        "ext_compact_under",
        Server(|s| settings(s).compact_under.into()),
        "Number of free pages below which the server rewrites pages (`-o ext_compact_under`).",
    ),
    Row::gauge(
        "ext_drop_under",
        Server(|s| settings(s).drop_under.into()),
        "Number of free pages below which the server evicts the oldest page (`-o ext_drop_under`).",
    ),
    Row::gauge(
        "ext_max_sleep",
        Server(|s| s.tuned_flash().shown.max_sleep.into()),
        "Value of `-o ext_max_sleep` or `extstore max_sleep`, without effect.",
    )
    .unit(Microseconds),
    Row::gauge(
        "ext_max_frag",
        Server(|s| Value::Real(settings(s).max_frag, Some(2))),
        "Share of used bytes below which the server rewrites a page (`-o ext_max_frag`).",
    ),
    Row::gauge(
        "slab_automove_freeratio",
        Server(|s| Value::Real(s.tuned().slab_automove_freeratio, Some(3))),
        "Value of `slabs automove freeratio`, without effect.",
    ),
    Row::text(
        "ext_drop_unread",
        Server(|s| settings(s).drop_unread.into()),
        "Whether items that were never read are given up when their page is rewritten \
         (`-o ext_drop_unread`).",
    ),
];

/// The rows of `stats extstore`, for each page.
pub(in crate::stats) const PAGE: &[Row] = &[
    Row::gauge(
        "version",
        Page(|page| page.version),
        "Sequence number of the use of the page, higher for a later use; 0: the page is free.",
    ),
    Row::gauge("bytes", Page(|page| page.bytes), "Bytes of items that are on the page.")
        .unit(Bytes),
    Row::gauge(
        "bucket",
        Page(|page| page.bucket.into()),
        "Contents of the page, by memcached's numbers: 0 for evicted items, 3 for those that expire soon.",
    ),
    Row::constant("free_bucket", "0", "Free pages are used for all items."),
];

fn total(snapshot: &Snapshot<'_>, read: fn(&FlashGauges) -> u64) -> Value {
    snapshot.flash_total(read).into()
}

fn settings(snapshot: &Snapshot<'_>) -> FlashSettings {
    snapshot.tuned_flash().settings
}
