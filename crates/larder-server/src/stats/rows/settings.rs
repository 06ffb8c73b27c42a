//! Rows of `stats settings`. They are not metrics. Rows of `stats` already export the limits as
//! metrics.

use crate::memory::slab_classes::CHUNK_MAX;
use crate::net::dialect;
use crate::options::{EngineKind, Options, Runtime};
use crate::stats::row::Source::Server;
use crate::stats::row::Unit::{Bytes, Microseconds, Seconds};
use crate::stats::row::{Condition, Row, Value};
use larder_protocol::{Parser, Streams};

const SEGMENT: Condition =
    Condition::new("with the segment engine", |s, _| s.server.options.engine.is_segment());

const NO_SLABS: &str = "There are no slabs.";
const NO_LISTS: &str = "There are no LRU lists.";
const NO_INDEX_OPTIONS: &str = "The index grows automatically, in small steps.";

/// The rows before memcached's rows of TLS.
pub(in crate::stats) const COMPATIBLE: &[Row] = &[
    Row::gauge(
        "maxbytes",
        Server(|s| s.server.memory().limit.into()),
        "Memory limit (`-m`, `cache_memlimit`).",
    )
    .unit(Bytes),
    Row::gauge(
        "maxconns",
        Server(|s| s.server.options.conn_limit.into()),
        "Maximum number of open connections (`-c`).",
    ),
    Row::gauge(
        "tcpport",
        Server(|s| port(&s.server.options, s.server.options.port)),
        "TCP port (`-p`).",
    ),
    Row::gauge(
        "udpport",
        Server(|s| port(&s.server.options, s.server.options.udp_port)),
        "UDP port (`-U`).",
    ),
    Row::text(
        "inter",
        Server(|s| or_null(s.server.options.listen.join(","))),
        "Addresses to listen on (`-l`).",
    ),
    Row::gauge(
        "verbosity",
        Server(|s| s.server.verbosity().into()),
        "Verbosity of the log (`-v`, `verbosity`).",
    ),
    Row::constant("oldest", "0", "Flushes are kept as a position among writes, not as a time."),
    Row::text(
        "evictions",
        Server(|s| if s.server.options.disable_evictions { "off" } else { "on" }.into()),
        "Whether the server evicts items when memory is full (`-M`).",
    ),
    Row::text(
        "domain_socket",
        Server(|s| or_null(unix_socket(&s.server.options).unwrap_or_default())),
        "Path of the unix socket (`-s`).",
    ),
    Row::text(
        "umask",
        Server(|s| format!("{:o}", s.server.options.unix_mask).into()),
        "Access mask of the unix socket, in octal (`-a`).",
    ),
    Row::text(
        "shutdown_command",
        Server(|s| s.server.options.enable_shutdown.into()),
        "Whether `shutdown` is enabled (`-A`).",
    ),
    Row::constant("growth_factor", "1.25", "The size classes are those of memcached's defaults."),
    Row::constant("chunk_size", "48", "The size classes are those of memcached's defaults."),
    Row::gauge(
        "num_threads",
        Server(|s| s.server.options.threads.into()),
        "Worker threads (`-t`).",
    ),
    Row::constant("num_threads_per_udp", "0", "Each UDP socket has one thread."),
    Row::text(
        "stat_key_prefix",
        Server(|s| char::from(s.server.settings.limits.prefix_delimiter).to_string().into()),
        "Delimiter after the prefix of a key (`-D`).",
    ),
    Row::text(
        "detail_enabled",
        Server(|s| s.server.log.observed().has(Streams::PREFIXES).into()),
        "Whether the server counts requests by prefix (`stats detail on`).",
    ),
    Row::gauge(
        "reqs_per_event",
        Server(|s| s.server.options.max_reqs_per_event.into()),
        "Maximum number of requests answered in a row for one connection (`-R`).",
    ),
    Row::text(
        "cas_enabled",
        Server(|s| (!s.server.options.disable_cas).into()),
        "Whether items have CAS values (`-C`).",
    ),
    Row::gauge(
        "tcp_backlog",
        Server(|s| s.server.options.listen_backlog.into()),
        "Maximum number of connections in the accept queue (`-b`).",
    ),
    Row::text(
        "binding_protocol",
        Server(|s| protocol(&s.server.options).into()),
        "Protocol for clients (`-B`).",
    ),
    Row::text(
        "auth_enabled_sasl",
        Server(|s| s.server.options.enable_sasl.into()),
        "Whether SASL logins are required (`-S`).",
    ),
    Row::text(
        "auth_enabled_ascii",
        Server(|s| match &s.server.options.auth_file {
            Some(path) => path.display().to_string().into(),
            None => "no".into(),
        }),
        "Password file for logins in the text protocol (`-Y`), or `no`.",
    ),
    Row::gauge(
        "item_size_max",
        Server(|s| s.server.options.max_item_size.into()),
        "Maximum item size (`-I`).",
    )
    .unit(Bytes),
    Row::text(
        "maxconns_fast",
        Server(|s| s.suboptions().maxconns_fast.into()),
        "Whether connections beyond the limit are closed at once instead of waiting.",
    ),
    Row::constant("hashpower_init", "0", NO_INDEX_OPTIONS),
    Row::constant("slab_reassign", "no", NO_SLABS),
    Row::gauge(
        "slab_automove",
        Server(|s| s.tuned().slab_automove.into()),
        "Value of `slabs automove`, without effect.",
    ),
    Row::gauge(
        "slab_automove_ratio",
        Server(|s| Value::Real(s.tuned().slab_automove_ratio, Some(2))),
        "Value of `slabs automove ratio`, without effect.",
    ),
    Row::gauge(
        "slab_automove_window",
        Server(|s| s.tuned().slab_automove_window.into()),
        "Value of `slabs automove window`, without effect.",
    ),
    Row::gauge(
        "slab_chunk_max",
        Server(|_| CHUNK_MAX.into()),
        "Largest chunk of the size classes in the statistics.",
    )
    .unit(Bytes),
    Row::text(
        "lru_crawler",
        Server(|s| s.server.controls.crawler_enabled().into()),
        "Whether the server searches for expired items in the background.",
    ),
    Row::gauge(
        "lru_crawler_sleep",
        Server(|s| s.tuned().lru_crawler_sleep.into()),
        "Value of `lru_crawler sleep`, without effect.",
    )
    .unit(Microseconds),
    Row::gauge(
        "lru_crawler_tocrawl",
        Server(|s| s.tuned().lru_crawler_tocrawl.into()),
        "Value of `lru_crawler tocrawl`, without effect.",
    ),
    Row::constant("tail_repair_time", "0", NO_LISTS),
    Row::text(
        "flush_enabled",
        Server(|s| (!s.server.options.disable_flush_all).into()),
        "Whether `flush_all` is enabled (`-F` disables it).",
    ),
    Row::text(
        "dump_enabled",
        Server(|s| (!s.server.options.disable_dumping).into()),
        "Whether dumps of keys are enabled (`-X` disables them).",
    ),
    Row::constant("hash_algorithm", "rapidhash", "Keys are hashed with a secret seed."),
    Row::constant("lru_maintainer_thread", "no", NO_LISTS),
    Row::constant("lru_segmented", "no", NO_LISTS),
    Row::gauge(
        "hot_lru_pct",
        Server(|s| s.tuned().hot_lru_pct.into()),
        "Value of `lru tune`, without effect.",
    ),
    Row::gauge(
        "warm_lru_pct",
        Server(|s| s.tuned().warm_lru_pct.into()),
        "Value of `lru tune`, without effect.",
    ),
    Row::gauge(
        "hot_max_factor",
        Server(|s| Value::Real(s.tuned().hot_max_factor, Some(2))),
        "Value of `lru tune`, without effect.",
    ),
    Row::gauge(
        "warm_max_factor",
        Server(|s| Value::Real(s.tuned().warm_max_factor, Some(2))),
        "Value of `lru tune`, without effect.",
    ),
    Row::constant("temp_lru", "no", NO_LISTS),
    Row::constant("temporary_ttl", "61", NO_LISTS),
    Row::gauge(
        "idle_timeout",
        Server(|s| s.suboptions().idle_timeout.into()),
        "Time after which idle connections are closed (`-o idle_timeout`); 0: never.",
    )
    .unit(Seconds),
    Row::gauge(
        "watcher_logbuf_size",
        Server(|s| s.suboptions().watcher_logbuf_size.into()),
        "Buffer of log lines for each watcher (`-o watcher_logbuf_size`).",
    )
    .unit(Bytes),
    Row::constant("worker_logbuf_size", "65536", "Threads keep no lines of their own."),
    Row::gauge(
        "read_buf_mem_limit",
        Server(|s| s.suboptions().read_buf_mem_limit.into()),
        "Memory that all connections may hold together (`-o read_buf_mem_limit`); 0 is a share of \
         `-m`.",
    )
    .unit(Bytes),
    Row::text(
        "track_sizes",
        Server(|s| s.server.controls.tracks_sizes().into()),
        "Whether `stats sizes` counts items (`-o track_sizes`, `stats sizes_enable`).",
    ),
    Row::constant("inline_ascii_response", "no", "Answers are made when they are sent."),
    Row::constant("drop_privileges", "no", "System calls are not restricted."),
];

/// The rows after memcached's rows of TLS, followed by Larder's own rows.
pub(in crate::stats) const LAST: &[Row] = &[
    Row::constant("num_napi_ids", "0", "Connections go to threads in turn."),
    Row::text(
        "memory_file",
        Server(|s| memory_file(&s.server.options).into()),
        "File with the memory of items (`-e`).",
    ),
    Row::constant("client_flags_size", "4", "Client flags have 32 bits."),
    Row::text(
        "engine",
        Server(|s| engine(&s.server.options).into()),
        "Larder's own: engine that stores the items (`--engine`).",
    ),
    Row::text(
        "runtime",
        Server(|s| runtime(&s.server.options).into()),
        "Larder's own: event loop of the worker threads (`--runtime`).",
    ),
    Row::gauge(
        "size_exponent",
        Server(|s| Value::Real(s.server.options.size_exponent(), None)),
        "Larder's own: weight of item size in eviction (`--size-exponent`).",
    )
    .shown(SEGMENT),
];

/// Returns the configured port. Returns 0 if any free port is requested (-1), or if a unix socket
/// replaces TCP and UDP.
fn port(options: &Options, port: i32) -> Value {
    if options.unix_socket.is_some() { 0 } else { port.max(0) }.into()
}

fn unix_socket(options: &Options) -> Option<String> {
    options.unix_socket.as_ref().map(|path| path.display().to_string())
}

fn memory_file(options: &Options) -> String {
    let file = options.memory_file.as_ref().map(|path| path.display().to_string());
    file.unwrap_or_else(|| "(null)".to_owned())
}

fn or_null(text: String) -> Value {
    if text.is_empty() { "NULL".into() } else { text.into() }
}

fn protocol(options: &Options) -> &'static str {
    match dialect::opening(options) {
        Parser::TEXT | Parser::TEXT_LOGIN => "ascii",
        Parser::BINARY | Parser::BINARY_LOGIN => "binary",
        _ => "auto-negotiate",
    }
}

fn engine(options: &Options) -> &'static str {
    match options.engine {
        EngineKind::Segment => "segment",
        EngineKind::Delayed => "delayed",
        EngineKind::Moka => "moka",
        EngineKind::Dashmap => "dashmap",
    }
}

fn runtime(options: &Options) -> &'static str {
    match options.runtime {
        Runtime::PerCore => "per-core",
        Runtime::TokioCurrentThread => "tokio-current-thread",
        Runtime::TokioMultiThread => "tokio-multi-thread",
    }
}
