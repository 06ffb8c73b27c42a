//! Help texts of metrics. A metric uses the help of its row, unless [`HELP`] contains a text for
//! the metric.

use super::row::Row;

/// Help texts for metrics whose rows have unsuitable help: the help describes only one set of
/// labels, or uses terms of `stats`.
const HELP: [(&str, &str); 29] = [
    ("larder_commands_total", "Keys and requests of commands, by outcome."),
    ("larder_compares_total", "Stores with a CAS to compare, by outcome."),
    ("larder_connections_closed_total", "Connections that the server closed, by reason."),
    (
        "larder_connections_rejected_total",
        "Connections that were closed at once because the connection limit was reached.",
    ),
    ("larder_cpu_seconds_total", "CPU time of the process, by mode."),
    ("larder_dead_items_read_total", "Misses that found an invalid item, by reason."),
    ("larder_dump_running", "1 while a dump runs, else 0."),
    (
        "larder_flash_checksum_errors_total",
        "Lookups that missed because of a wrong checksum on flash.",
    ),
    ("larder_flash_items", "Items on flash; `larder_items` includes them."),
    (
        "larder_flash_items_returned_total",
        "Items that were promoted from flash to memory and evicted again without a write, because the copy on \
         flash was unchanged.",
    ),
    ("larder_flash_errors_total", "Failed reads and writes of the flash device."),
    ("larder_flash_off", "1 if the server has stopped using flash after too many errors, else 0."),
    ("larder_flash_pages", "Pages of the flash tier, by state."),
    ("larder_flash_rewrites_total", "Items of rewritten flash pages, by outcome."),
    (
        "larder_hit_ratio_estimate",
        "Estimated hit ratio with a multiple of the current memory limit.",
    ),
    ("larder_item_bytes", "Bytes that memcached would count for the items of `larder_items`."),
    ("larder_items_removed_total", "Items that the server removed, by reason."),
    (
        "larder_items_removed_unread_total",
        "Items that the server removed without their ever being read, by reason.",
    ),
    ("larder_log_watchers", "Connections that watch the log."),
    ("larder_memory_bytes", "Memory, by use."),
    ("larder_memory_limit_bytes", "Memory limit for items and their index."),
    ("larder_stores_refused_total", "Stores that were refused, by reason."),
    (
        "larder_tls_errors_total",
        "Connections that were closed because they violated TLS, by stage.",
    ),
    ("larder_tls_sessions_total", "TLS handshakes that started a new session."),
    (
        "larder_tracking_connections",
        "Connections with `CLIENT TRACKING`, which learn when items change.",
    ),
    (
        "larder_tracking_keys",
        "Keys that connections with `CLIENT TRACKING` have read, and that have not changed since.",
    ),
    (
        "larder_tracking_keys_evicted_total",
        "Keys that `CLIENT TRACKING` dropped from its table because it was full.",
    ),
    (
        "larder_tracking_prefixes",
        "Prefixes of keys that connections with `CLIENT TRACKING BCAST` track.",
    ),
    ("larder_worker_threads", "Worker threads."),
];

/// Returns the help of `metric`, which is one sentence. `row` is any row with this metric.
#[must_use]
pub fn metric_help(row: &Row, metric: &str) -> &'static str {
    HELP.iter().find(|(name, _)| *name == metric).map_or(row.help, |(_, help)| help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{PAGES, Page};
    use std::collections::BTreeMap;

    /// All rows of a metric must have the same help text, without links and without the words
    /// "Larder's own".
    #[test]
    fn every_metric_has_one_help_text() {
        let mut metrics: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in PAGES.into_iter().flat_map(Page::rows) {
            if let Some(metric) = row.metric {
                metrics.entry(metric.name).or_default().push(row);
            }
        }
        for (name, rows) in &metrics {
            let helps: Vec<_> = rows.iter().map(|row| metric_help(row, name)).collect();
            assert!(helps.iter().all(|help| *help == helps[0]), "{name} needs an entry in HELP");
            let is_foreign = ["](", "Larder's own"].iter().any(|text| helps[0].contains(text));
            assert!(!is_foreign, "{name}: {}", helps[0]);
            let is_help_of_row = rows.iter().all(|row| row.help == helps[0]);
            let entries = HELP.iter().filter(|(entry, _)| entry == name).count();
            assert_eq!(entries, usize::from(!is_help_of_row), "{name}");
        }
        let unknown = HELP.iter().find(|(name, _)| !metrics.contains_key(name));
        assert_eq!(unknown, None, "this metric does not exist");
    }
}
