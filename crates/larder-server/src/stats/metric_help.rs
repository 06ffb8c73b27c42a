//! What metrics mean. A row of the table of statistics says it, unless several rows are one metric.

use super::row::Row;

/// What metrics are, whose rows speak of one set of labels alone, or in the terms of `stats`.
const HELP: [(&str, &str); 24] = [
    ("larder_commands_total", "Keys and requests that commands were executed for, by outcome."),
    ("larder_compares_total", "Values that were sent with a CAS to compare, by outcome."),
    ("larder_connections_closed_total", "Connections that the server closed, by reason."),
    (
        "larder_connections_rejected_total",
        "Connections that were closed at once because too many were open.",
    ),
    ("larder_cpu_seconds_total", "CPU time of the process, in its own code and in the kernel."),
    (
        "larder_dead_items_read_total",
        "Misses that came across an item which was not valid any more, by reason.",
    ),
    ("larder_dump_running", "1 while a dump shows items, else 0."),
    (
        "larder_flash_checksum_errors_total",
        "Look-ups that missed because the checksum of what flash had was wrong.",
    ),
    ("larder_flash_items", "Items that are on flash; `larder_items` contains them."),
    (
        "larder_flash_items_returned_total",
        "Items that were copied from flash to memory and evicted again without a write, because what is \
         on flash was the same.",
    ),
    ("larder_flash_off", "1 if flash has failed so often that it is not used any more, else 0."),
    ("larder_flash_pages", "Pages of the flash tier, by state."),
    (
        "larder_flash_rewrites_total",
        "Items of flash pages that were rewritten, by what became of them.",
    ),
    (
        "larder_hit_ratio_estimate",
        "Estimated hit ratio with a multiple of the present memory limit.",
    ),
    ("larder_item_bytes", "Bytes that memcached would count for the items of `larder_items`."),
    ("larder_items_removed_total", "Items that the server removed, by reason."),
    (
        "larder_items_removed_unread_total",
        "Items that the server removed and that had never been read, by reason.",
    ),
    ("larder_log_watchers", "Connections that watch the log."),
    ("larder_memory_bytes", "Memory, by what it is used for."),
    ("larder_memory_limit_bytes", "Limit of the memory for items and their index."),
    ("larder_stores_refused_total", "Values that were refused, by reason."),
    (
        "larder_tls_errors_total",
        "Connections that were closed because they violated TLS, by stage.",
    ),
    ("larder_tls_sessions_total", "TLS handshakes that resumed no session."),
    ("larder_worker_threads", "Threads that serve connections."),
];

/// One sentence about a metric, which has this row among its own.
#[must_use]
pub fn metric_help(row: &Row, metric: &str) -> &'static str {
    HELP.iter().find(|(name, _)| *name == metric).map_or(row.help, |(_, help)| help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{PAGES, Page};
    use std::collections::BTreeMap;

    /// One sentence is about all rows of a metric, and in words that those of Prometheus know.
    #[test]
    fn every_metric_has_a_sentence_of_its_own() {
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
            let row_says_it = rows.iter().all(|row| row.help == helps[0]);
            let entries = HELP.iter().filter(|(entry, _)| entry == name).count();
            assert_eq!(entries, usize::from(!row_says_it), "{name}");
        }
        let unknown = HELP.iter().find(|(name, _)| !metrics.contains_key(name));
        assert_eq!(unknown, None, "this metric does not exist");
    }
}
