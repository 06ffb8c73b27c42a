//! `stats items`: every item under the slab class that it would have in memcached.

use super::Page;
use crate::server::Server;
use larder_operations::{ClassCounters, Counter};

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    let gauges = server.gauges();
    for (class, gauge) in gauges.classes.iter().enumerate().filter(|(_, gauge)| gauge.items > 0) {
        let hits = sum(server, class, |c| &c.get_hits);
        let mut line =
            |name: &str, value: u64| page.line(&format!("items:{}:{name}", class + 1), value);
        line("number", gauge.items);
        line("number_hot", 0);
        line("number_warm", 0);
        line("number_cold", gauge.items);
        line("age_hot", 0);
        line("age_warm", 0);
        line("age", gauge.evicted_time);
        line("mem_requested", gauge.bytes);
        line("evicted", gauge.evicted);
        line("evicted_nonzero", gauge.evicted_nonzero);
        line("evicted_time", gauge.evicted_time);
        line("outofmemory", gauge.out_of_memory);
        line("tailrepairs", 0);
        line("reclaimed", gauge.reclaimed);
        line("expired_unfetched", gauge.expired_unfetched);
        line("evicted_unfetched", gauge.evicted_unfetched);
        line("evicted_active", gauge.evicted_active);
        line("crawler_reclaimed", gauge.crawler_reclaimed);
        for name in [
            "crawler_items_checked",
            "lrutail_reflocked",
            "moves_to_cold",
            "moves_to_warm",
            "moves_within_lru",
            "direct_reclaims",
            "hits_to_hot",
            "hits_to_warm",
        ] {
            line(name, 0);
        }
        line("hits_to_cold", hits);
        line("hits_to_temp", 0);
    }
}

/// A counter of one class, over all threads.
pub(super) fn sum(server: &Server, class: usize, counter: fn(&ClassCounters) -> &Counter) -> u64 {
    let classes = server.counters.iter().filter_map(|counters| counters.classes.get(class));
    classes.map(|class| counter(class).get()).sum()
}
