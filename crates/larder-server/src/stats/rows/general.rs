//! Rows of `stats`.

use crate::process::version;
use crate::stats::row::Source::{Class, Engine, Server, Thread};
use crate::stats::row::Unit::{Bytes, Microseconds, Seconds};
use crate::stats::row::{Condition, Row, Value};
use crate::stats::snapshot::Snapshot;
use larder_store::segment::Restart;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const MAXCONNS_FAST: Condition =
    Condition::new("unless `-o no_maxconns_fast` is given", |s, _| s.suboptions().maxconns_fast);
const IDLE_TIMEOUT: Condition =
    Condition::new("with `-o idle_timeout`", |s, _| s.suboptions().idle_timeout > 0);

const MEMORY_FILE: Condition =
    Condition::new("with `-e` or `-o memory_image`", |s, _| s.server.start.restart.is_some());

const NO_RESPONSE_POOL: &str = "There is no pool of response objects.";
const NO_SLABS: &str = "There are no slabs with pages to move.";
const NO_LISTS: &str = "There are no LRU lists.";
const NO_NAPI: &str = "Connections go to threads in turn.";

const CLOSED: &str = "larder_connections_closed_total";
const COMMANDS_TOTAL: &str = "larder_commands_total";
const COMPARES: &str = "larder_compares_total";
const DEAD_READ: &str = "larder_dead_items_read_total";
pub(in crate::stats) const MEMORY: &str = "larder_memory_bytes";
const REFUSED: &str = "larder_stores_refused_total";
pub(in crate::stats) const REMOVED: &str = "larder_items_removed_total";
const REMOVED_UNREAD: &str = "larder_items_removed_unread_total";

pub(in crate::stats) const PROCESS: &[Row] = &[
    Row::gauge("pid", Server(|_| std::process::id().into()), "Number of the process."),
    Row::gauge(
        "uptime",
        Server(|s| s.server.clock.uptime().into()),
        "Time since the start of the server.",
    )
    .unit(Seconds)
    .metric("larder_uptime_seconds", &[]),
    Row::gauge(
        "time",
        Server(|s| s.server.clock.unix_time().0.into()),
        "Unix time of the server's clock.",
    )
    .unit(Seconds),
    Row::text(
        "version",
        Server(|_| version::MEMCACHED_LEVEL.into()),
        "Release of memcached that the server is compatible with, as reported by `version`.",
    ),
    Row::constant("libevent", "none", "There is no libevent."),
    Row::gauge("pointer_size", Server(|_| usize::BITS.into()), "Bits of an address."),
    Row::counter(
        "rusage_user",
        Server(|s| s.cpu_times()[0].into()),
        "CPU time of the process in user mode.",
    )
    .unit(Seconds)
    .metric("larder_cpu_seconds_total", &[("mode", "user")]),
    Row::counter(
        "rusage_system",
        Server(|s| s.cpu_times()[1].into()),
        "CPU time of the process in the kernel.",
    )
    .unit(Seconds)
    .metric("larder_cpu_seconds_total", &[("mode", "system")]),
];

/// The rows about the result of a restart.
pub(in crate::stats) const RESTART: &[Row] = &[
    Row::text(
        "restart_state",
        Server(|s| {
            match s.server.start.restart {
                Some((Restart::Warm, _)) => "warm",
                Some((Restart::Repaired, _)) => "repaired",
                Some((Restart::Cold(_), _)) | None => "cold",
            }
            .into()
        }),
        "Larder's own: `warm` if the cache was restored from an earlier process, `repaired` if that process had died, \
         `cold` if the cache started empty.",
    )
    .shown(MEMORY_FILE),
    Row::gauge(
        "restart_ms",
        Server(|s| {
            let took = s.server.start.restart.map_or(Duration::ZERO, |(_, took)| took);
            Value::Real(took.as_secs_f64() * 1e3, Some(3))
        }),
        "Larder's own: duration of the restore, in milliseconds.",
    )
    .shown(MEMORY_FILE),
];

pub(in crate::stats) const CONNECTIONS: &[Row] = &[
    Row::gauge(
        "max_connections",
        Server(|s| s.server.options.conn_limit.into()),
        "Maximum number of open connections (`-c`).",
    )
    .metric("larder_connection_limit", &[]),
    Row::gauge("curr_connections", Server(open_connections), "Open connections.")
        .metric("larder_connections", &[("interface", "memcached"), ("state", "open")]),
    Row::counter(
        "total_connections",
        Server(|s| s.server.connections.total.load(Relaxed).into()),
        "Accepted connections.",
    )
    .metric("larder_connections_accepted_total", &[("interface", "memcached")]),
    Row::counter(
        "rejected_connections",
        Server(|s| s.server.connections.rejected.load(Relaxed).into()),
        "Connections that were closed at once because the limit of `-c` was reached.",
    )
    .metric("larder_connections_rejected_total", &[("interface", "memcached")])
    .shown(MAXCONNS_FAST),
    Row::gauge(
        "connection_structures",
        Server(open_connections),
        "Same as `curr_connections`: closed connections use no memory.",
    ),
    Row::counter(
        "response_obj_oom",
        Thread(|t| &t.response_obj_oom),
        "Lookups of large values that were refused because values being sent pinned too much memory.",
    )
    .metric("larder_gets_refused_total", &[("reason", "no_memory")]),
    Row::constant("response_obj_count", "0", NO_RESPONSE_POOL),
    Row::constant("response_obj_bytes", "0", NO_RESPONSE_POOL),
    Row::gauge(
        "read_buf_count",
        Server(open_connections),
        "Same as `curr_connections`: each connection may have a buffer.",
    ),
    Row::gauge(
        "read_buf_bytes",
        Server(|s| {
            let tls = s.server.access.tls.as_ref().map_or(0, |tls| tls.fixed());
            (s.server.connections.held() + tls).into()
        }),
        "Memory of all connections: incomplete requests, unsent output, reads of large values, and 3.5 KiB for each TLS \
         connection.",
    )
    .unit(Bytes)
    .metric(MEMORY, &[("use", "buffers")]),
    Row::constant("read_buf_bytes_free", "0", "There is no pool of free buffers."),
    Row::counter(
        "read_buf_oom",
        Thread(|t| &t.read_buf_oom),
        "Connections that were closed because the memory limit of all connections was reached.",
    )
    .metric(CLOSED, &[("reason", "no_memory")]),
    Row::constant("reserved_fds", "0", "No file descriptors are reserved."),
];

fn open_connections(snapshot: &Snapshot<'_>) -> Value {
    snapshot.server.connections.current.load(Relaxed).into()
}

pub(in crate::stats) const COMMANDS: &[Row] = &[
    Row::counter(
        "cmd_get",
        Server(|s| {
            (s.class_counter(|c| &c.get_hits) + s.counters().thread.get_misses.get()).into()
        }),
        "Keys that were looked up: the sum of `get_hits` and `get_misses`.",
    ),
    Row::counter(
        "cmd_set",
        Class(|c| &c.cmd_set),
        "Values that were sent to be stored, whether their conditions held or not; those refused as \
         too large or because memory is short are not counted.",
    )
    .metric(COMMANDS_TOTAL, &[("command", "store"), ("result", "done")]),
    Row::counter("cmd_flush", Thread(|t| &t.cmd_flush), "Requests to flush everything.")
        .metric(COMMANDS_TOTAL, &[("command", "flush"), ("result", "done")]),
    Row::counter(
        "cmd_touch",
        Thread(|t| &t.cmd_touch),
        "Keys of touch requests: the sum of `touch_hits` and `touch_misses`.",
    ),
    Row::counter("cmd_meta", Thread(|t| &t.cmd_meta), "Requests for an item's attributes (`me`).")
        .metric(COMMANDS_TOTAL, &[("command", "describe"), ("result", "done")]),
    Row::counter(
        "get_hits",
        Class(|c| &c.get_hits),
        "Keys that were looked up and found; those whose expiry was changed with it count as \
         `touch_hits`.",
    )
    .metric(COMMANDS_TOTAL, &[("command", "get"), ("result", "hit")]),
    Row::counter("get_misses", Thread(|t| &t.get_misses), "Keys that were looked up and not found.")
        .metric(COMMANDS_TOTAL, &[("command", "get"), ("result", "miss")]),
    Row::counter(
        "get_expired",
        Thread(|t| &t.get_expired),
        "Misses that found an expired item.",
    )
    .metric(DEAD_READ, &[("reason", "expired")]),
    Row::counter(
        "get_flushed",
        Thread(|t| &t.get_flushed),
        "Misses that found a flushed item.",
    )
    .metric(DEAD_READ, &[("reason", "flushed")]),
];

/// The command counters that follow the flash counters.
pub(in crate::stats) const OTHER_COMMANDS: &[Row] = &[
    Row::counter(
        "delete_misses",
        Thread(|t| &t.delete_misses),
        "Keys to delete that were not found.",
    )
    .metric(COMMANDS_TOTAL, &[("command", "delete"), ("result", "miss")]),
    Row::counter("delete_hits", Class(|c| &c.delete_hits), "Keys that were deleted.")
        .metric(COMMANDS_TOTAL, &[("command", "delete"), ("result", "hit")]),
    Row::counter(
        "incr_misses",
        Thread(|t| &t.incr_misses),
        "Keys to increment that were not found.",
    )
    .metric(COMMANDS_TOTAL, &[("command", "incr"), ("result", "miss")]),
    Row::counter("incr_hits", Class(|c| &c.incr_hits), "Numbers that were incremented.")
        .metric(COMMANDS_TOTAL, &[("command", "incr"), ("result", "hit")]),
    Row::counter(
        "decr_misses",
        Thread(|t| &t.decr_misses),
        "Keys to decrement that were not found.",
    )
    .metric(COMMANDS_TOTAL, &[("command", "decr"), ("result", "miss")]),
    Row::counter("decr_hits", Class(|c| &c.decr_hits), "Numbers that were decremented.")
        .metric(COMMANDS_TOTAL, &[("command", "decr"), ("result", "hit")]),
    Row::counter(
        "cas_misses",
        Thread(|t| &t.cas_misses),
        "Stores with a CAS whose key was not found.",
    )
    .metric(COMPARES, &[("result", "miss")]),
    Row::counter(
        "cas_hits",
        Class(|c| &c.cas_hits),
        "Stores with a CAS that succeeded because it equalled the item's.",
    )
    .metric(COMPARES, &[("result", "match")]),
    Row::counter(
        "cas_badval",
        Class(|c| &c.cas_badval),
        "Stores with a CAS that were refused because it differed from the item's.",
    )
    .metric(COMPARES, &[("result", "mismatch")]),
    Row::counter("touch_hits", Class(|c| &c.touch_hits), "Keys of touch requests that were found.")
        .metric(COMMANDS_TOTAL, &[("command", "touch"), ("result", "hit")]),
    Row::counter(
        "touch_misses",
        Thread(|t| &t.touch_misses),
        "Keys of touch requests that were not found.",
    )
    .metric(COMMANDS_TOTAL, &[("command", "touch"), ("result", "miss")]),
    Row::counter(
        "store_too_large",
        Thread(|t| &t.store_too_large),
        "Stores that were refused because the item would exceed `-I`.",
    )
    .metric(REFUSED, &[("reason", "too_large")]),
    Row::counter(
        "store_no_memory",
        Thread(|t| &t.store_no_memory),
        "Stores that were refused because of a lack of memory.",
    )
    .metric(REFUSED, &[("reason", "no_memory")]),
    Row::counter("auth_cmds", Thread(|t| &t.auth_cmds), "Login attempts.")
        .metric("larder_logins_total", &[]),
    Row::counter("auth_errors", Thread(|t| &t.auth_errors), "Failed logins.")
        .metric("larder_login_failures_total", &[]),
    Row::counter(
        "idle_kicks",
        Server(|s| s.server.connections.idle_kicks.load(Relaxed).into()),
        "Connections that were closed by the idle timeout.",
    )
    .metric(CLOSED, &[("reason", "idle")])
    .shown(IDLE_TIMEOUT),
    Row::counter(
        "stalled_kicks",
        Server(|s| s.server.shed_count().into()),
        "Larder's own: connections that load shedding closed while memory for connections was short: stalled ones, or those \
         without progress for longest ([configuration.md](configuration.md#connections)).",
    )
    .metric(CLOSED, &[("reason", "stalled")]),
    Row::counter("bytes_read", Thread(|t| &t.bytes_read), "Received bytes.")
        .unit(Bytes)
        .metric("larder_received_bytes_total", &[("interface", "memcached")]),
    Row::counter("bytes_written", Thread(|t| &t.bytes_written), "Sent bytes.")
        .unit(Bytes)
        .metric("larder_sent_bytes_total", &[("interface", "memcached")]),
];

pub(in crate::stats) const LIMITS: &[Row] = &[
    Row::gauge(
        "limit_maxbytes",
        Server(|s| s.server.memory().limit.into()),
        "Memory limit (`-m`, `cache_memlimit`).",
    )
    .unit(Bytes)
    .metric("larder_memory_limit_bytes", &[]),
    Row::gauge(
        "accepting_conns",
        Server(|s| Value::bit(!s.server.gate.is_closed())),
        "1 while connections are accepted, 0 while they wait for another to close or for a file \
         descriptor.",
    )
    .metric("larder_accepting_connections", &[]),
    Row::counter(
        "listen_disabled_num",
        Server(|s| s.server.gate.closings().into()),
        "Times that accepting paused because of the connection limit or a lack of file descriptors.",
    )
    .metric("larder_accept_pauses_total", &[]),
    Row::counter(
        "time_in_listen_disabled_us",
        Server(|s| {
            u64::try_from(s.server.gate.closed_for().as_micros()).unwrap_or(u64::MAX).into()
        }),
        "Time that accepting was paused because of the connection limit or a lack of file descriptors.",
    )
    .unit(Microseconds)
    .metric("larder_accept_paused_seconds_total", &[]),
    Row::gauge(
        "threads",
        Server(|s| s.server.options.threads.into()),
        "Worker threads (`-t`).",
    )
    .metric("larder_worker_threads", &[]),
    Row::counter(
        "conn_yields",
        Thread(|t| &t.conn_yields),
        "Times that a connection with more requests yielded to other connections.",
    )
    .metric("larder_connection_yields_total", &[]),
    Row::gauge(
        "hash_power_level",
        Server(|s| s.gauges().index_power.into()),
        "Binary logarithm of the number of index slots.",
    ),
    Row::gauge("hash_bytes", Server(|s| s.gauges().index_bytes.into()), "Memory of the index.")
        .unit(Bytes)
        .metric(MEMORY, &[("use", "index")]),
    Row::gauge(
        "hash_is_expanding",
        Server(|s| Value::bit(s.gauges().index_growing)),
        "1 while the index grows, else 0.",
    )
    .metric("larder_index_growing", &[]),
    Row::constant("slab_reassign_rescues", "0", NO_SLABS),
    Row::constant("slab_reassign_chunk_rescues", "0", NO_SLABS),
    Row::constant("slab_reassign_inline_reclaim", "0", NO_SLABS),
    Row::constant("slab_reassign_busy_items", "0", NO_SLABS),
    Row::constant("slab_reassign_busy_deletes", "0", NO_SLABS),
    Row::constant("slab_reassign_busy_nomem", "0", NO_SLABS),
    Row::constant("slab_reassign_last_busy_status", "none", NO_SLABS),
    Row::constant("slab_reassign_running", "0", NO_SLABS),
    Row::constant("slabs_moved", "0", NO_SLABS),
    Row::gauge(
        "lru_crawler_running",
        Server(|s| Value::bit(s.server.controls.dumps_run())),
        "1 while a dump (`lru_crawler metadump`, `mgdump`) runs, else 0.",
    )
    .metric("larder_dump_running", &[]),
    Row::counter(
        "lru_crawler_starts",
        Server(|s| s.server.controls.crawls().into()),
        "Requested crawls and dumps.",
    )
    .metric("larder_crawls_total", &[]),
    Row::constant("lru_maintainer_juggles", "0", NO_LISTS),
    Row::constant("malloc_fails", "0", "Failures to allocate are not counted."),
    Row::constant(
        "log_worker_dropped",
        "0",
        "No log line is lost before the watchers' buffers: see `log_watcher_skipped`.",
    ),
    Row::counter(
        "log_worker_written",
        Server(|s| s.server.log.counts().log_worker_written.load(Relaxed).into()),
        "Log lines written for watchers.",
    )
    .metric("larder_log_lines_written_total", &[]),
    Row::counter(
        "log_watcher_skipped",
        Server(|s| s.server.log.counts().log_watcher_skipped.load(Relaxed).into()),
        "Log lines dropped for slow watchers.",
    )
    .metric("larder_log_lines_skipped_total", &[]),
    Row::counter(
        "log_watcher_sent",
        Server(|s| s.server.log.counts().log_watcher_sent.load(Relaxed).into()),
        "Log lines sent to watchers.",
    )
    .metric("larder_log_lines_sent_total", &[]),
    Row::gauge(
        "log_watchers",
        Server(|s| s.server.log.watchers().into()),
        "Connections that watch the log (`watch`).",
    )
    .metric("larder_log_watchers", &[]),
];

pub(in crate::stats) const NETWORK_QUEUES: &[Row] = &[
    Row::constant("unexpected_napi_ids", "0", NO_NAPI),
    Row::constant("round_robin_fallback", "0", NO_NAPI),
];

pub(in crate::stats) const ITEMS: &[Row] = &[
    Row::gauge(
        "bytes",
        Server(|s| s.item_bytes().into()),
        "Bytes that memcached would count for the items of `curr_items`; at most the memory that they take.",
    )
    .unit(Bytes)
    .metric("larder_item_bytes", &[]),
    Row::gauge(
        "curr_items",
        Server(|s| s.gauges().items.into()),
        "Live items, and expired ones that were not removed yet; flushed items are removed within seconds.",
    )
    .metric("larder_items", &[]),
    Row::counter("total_items", Server(|s| s.gauges().items_total.into()), "Stored items.")
        .metric("larder_items_stored_total", &[]),
    Row::constant("slab_global_page_pool", "0", NO_SLABS),
    Row::counter(
        "expired_unfetched",
        Engine(|c| c.expired_unfetched),
        "Expired or flushed items that were removed without ever being read.",
    )
    .metric(REMOVED_UNREAD, &[("reason", "expired")]),
    Row::counter(
        "evicted_unfetched",
        Engine(|c| c.evicted_unfetched),
        "Live items that were evicted without ever being read.",
    )
    .metric(REMOVED_UNREAD, &[("reason", "room")]),
    Row::counter(
        "evicted_active",
        Engine(|c| c.evicted_active),
        "Live items that were evicted after being read.",
    ),
    Row::counter(
        "evictions",
        Server(|s| s.gauges().evictions.into()),
        "Live items that were evicted.",
    )
    .metric(REMOVED, &[("reason", "room")]),
    Row::counter(
        "reclaimed",
        Engine(|c| c.reclaimed),
        "Expired or flushed items that were removed.",
    ),
];

pub(in crate::stats) const LAST: &[Row] = &[Row::constant("lru_bumps_dropped", "0", NO_LISTS)];
