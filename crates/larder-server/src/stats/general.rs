//! `stats`.

use super::Page;
use crate::server::Server;
use crate::{platform, version};
use larder_operations::{ClassCounters, Counter, ThreadCounters};
use std::sync::atomic::Ordering::Relaxed;

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    process(server, page);
    connections(server, page);
    commands(server, page);
    limits(server, page);
    items(server, page);
}

fn process(server: &Server, page: &mut Page<'_>) {
    page.line("pid", std::process::id());
    page.line("uptime", server.clock.uptime());
    page.line("time", server.clock.now().0);
    page.line("version", version::MEMCACHED_LEVEL);
    page.line("libevent", "none");
    page.line("pointer_size", usize::BITS);
    for (name, time) in ["rusage_user", "rusage_system"].iter().zip(platform::cpu_times()) {
        page.line(name, format_args!("{}.{:06}", time.as_secs(), time.subsec_micros()));
    }
}

fn connections(server: &Server, page: &mut Page<'_>) {
    let counts = &server.connections;
    let current = counts.current.load(Relaxed);
    page.line("max_connections", server.options.conn_limit);
    page.line("curr_connections", current);
    page.line("total_connections", counts.total.load(Relaxed));
    if server.options.suboptions.maxconns_fast {
        page.line("rejected_connections", counts.rejected.load(Relaxed));
    }
    page.line("connection_structures", current);
    page.line("response_obj_oom", thread(server, |t| &t.response_obj_oom));
    page.line("response_obj_count", 0);
    page.line("response_obj_bytes", 0);
    page.line("read_buf_count", current);
    let tls = server.tls.as_ref().map_or(0, |tls| tls.fixed());
    page.line("read_buf_bytes", server.held() + tls);
    page.line("read_buf_bytes_free", 0);
    page.line("read_buf_oom", thread(server, |t| &t.read_buf_oom));
    page.line("reserved_fds", 0);
}

fn commands(server: &Server, page: &mut Page<'_>) {
    let class = |counter: fn(&ClassCounters) -> &Counter| classes(server, counter);
    let thread = |counter: fn(&ThreadCounters) -> &Counter| thread(server, counter);
    let (hits, misses) = (class(|c| &c.get_hits), thread(|t| &t.get_misses));
    page.line("cmd_get", hits + misses);
    page.line("cmd_set", class(|c| &c.cmd_set));
    page.line("cmd_flush", thread(|t| &t.cmd_flush));
    page.line("cmd_touch", thread(|t| &t.cmd_touch));
    page.line("cmd_meta", thread(|t| &t.cmd_meta));
    page.line("get_hits", hits);
    page.line("get_misses", misses);
    page.line("get_expired", thread(|t| &t.get_expired));
    page.line("get_flushed", thread(|t| &t.get_flushed));
    page.line("delete_misses", thread(|t| &t.delete_misses));
    page.line("delete_hits", class(|c| &c.delete_hits));
    page.line("incr_misses", thread(|t| &t.incr_misses));
    page.line("incr_hits", class(|c| &c.incr_hits));
    page.line("decr_misses", thread(|t| &t.decr_misses));
    page.line("decr_hits", class(|c| &c.decr_hits));
    page.line("cas_misses", thread(|t| &t.cas_misses));
    page.line("cas_hits", class(|c| &c.cas_hits));
    page.line("cas_badval", class(|c| &c.cas_badval));
    page.line("touch_hits", class(|c| &c.touch_hits));
    page.line("touch_misses", thread(|t| &t.touch_misses));
    page.line("store_too_large", thread(|t| &t.store_too_large));
    page.line("store_no_memory", thread(|t| &t.store_no_memory));
    page.line("auth_cmds", thread(|t| &t.auth_cmds));
    page.line("auth_errors", thread(|t| &t.auth_errors));
    if server.options.suboptions.idle_timeout > 0 {
        page.line("idle_kicks", server.connections.idle_kicks.load(Relaxed));
    }
    page.line("stalled_kicks", server.shed_count());
    page.line("bytes_read", thread(|t| &t.bytes_read));
    page.line("bytes_written", thread(|t| &t.bytes_written));
}

fn limits(server: &Server, page: &mut Page<'_>) {
    let gauges = server.gauges();
    page.line("limit_maxbytes", server.memory().limit);
    page.line("accepting_conns", u8::from(!server.gate.is_closed()));
    page.line("listen_disabled_num", server.gate.closings());
    page.line("time_in_listen_disabled_us", server.gate.closed_for().as_micros());
    page.line("threads", server.options.threads);
    page.line("conn_yields", thread(server, |t| &t.conn_yields));
    page.line("hash_power_level", gauges.index_power);
    page.line("hash_bytes", gauges.index_bytes);
    page.line("hash_is_expanding", u8::from(gauges.index_growing));
    for name in [
        "slab_reassign_rescues",
        "slab_reassign_chunk_rescues",
        "slab_reassign_inline_reclaim",
        "slab_reassign_busy_items",
        "slab_reassign_busy_deletes",
        "slab_reassign_busy_nomem",
    ] {
        page.line(name, 0);
    }
    page.line("slab_reassign_last_busy_status", "none");
    page.line("slab_reassign_running", 0);
    page.line("slabs_moved", 0);
    page.line("lru_crawler_running", u8::from(server.controls.dumps_run()));
    page.line("lru_crawler_starts", server.controls.crawls());
    for name in ["lru_maintainer_juggles", "malloc_fails", "log_worker_dropped"] {
        page.line(name, 0);
    }
    let logged = server.log.counts();
    page.line("log_worker_written", logged.log_worker_written.load(Relaxed));
    page.line("log_watcher_skipped", logged.log_watcher_skipped.load(Relaxed));
    page.line("log_watcher_sent", logged.log_watcher_sent.load(Relaxed));
    page.line("log_watchers", server.log.watchers());
    super::tls::counts(server, page);
    for name in ["unexpected_napi_ids", "round_robin_fallback"] {
        page.line(name, 0);
    }
}

fn items(server: &Server, page: &mut Page<'_>) {
    let gauges = server.gauges();
    let sum = |field: fn(&larder_store::ClassGauges) -> u64| {
        gauges.classes.iter().map(field).fold(0, u64::wrapping_add)
    };
    page.line("bytes", gauges.bytes);
    page.line("curr_items", gauges.items);
    page.line("total_items", gauges.items_total);
    page.line("slab_global_page_pool", 0);
    page.line("expired_unfetched", sum(|c| c.expired_unfetched));
    page.line("evicted_unfetched", sum(|c| c.evicted_unfetched));
    page.line("evicted_active", sum(|c| c.evicted_active));
    page.line("evictions", gauges.evictions);
    page.line("reclaimed", sum(|c| c.reclaimed));
    page.line("crawler_reclaimed", sum(|c| c.crawler_reclaimed));
    for name in [
        "crawler_items_checked",
        "lrutail_reflocked",
        "moves_to_cold",
        "moves_to_warm",
        "moves_within_lru",
        "direct_reclaims",
        "lru_bumps_dropped",
    ] {
        page.line(name, 0);
    }
}

fn thread(server: &Server, counter: fn(&ThreadCounters) -> &Counter) -> u64 {
    server.counters.iter().map(|counters| counter(&counters.thread).get()).sum()
}

fn classes(server: &Server, counter: fn(&ClassCounters) -> &Counter) -> u64 {
    let classes = server.counters.iter().flat_map(|counters| &counters.classes);
    classes.map(|class| counter(class).get()).sum()
}
