//! `stats settings`.

use super::Page;
use crate::options::{EngineKind, Options};
use crate::server::Server;
use crate::slab_classes::CHUNK_MAX;

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    let options = &server.options;
    network(server, options, page);
    memory(options, page);
    constants(page);
    page.line("engine", name(options));
}

fn network(server: &Server, options: &Options, page: &mut Page<'_>) {
    let or_null = |text: String| if text.is_empty() { "NULL".to_owned() } else { text };
    let socket = options.unix_socket.as_ref().map(|path| path.display().to_string());
    page.line("maxbytes", options.limit_bytes());
    page.line("maxconns", options.conn_limit);
    page.line("tcpport", if socket.is_some() { 0 } else { options.port.max(0) });
    page.line("udpport", 0);
    page.line("inter", or_null(options.listen.join(",")));
    page.line("verbosity", server.verbosity());
    page.line("oldest", 0);
    page.line("evictions", if options.disable_evictions { "off" } else { "on" });
    page.line("domain_socket", or_null(socket.unwrap_or_default()));
    page.line("umask", format_args!("{:o}", options.unix_mask));
    page.flag("shutdown_command", false);
}

fn memory(options: &Options, page: &mut Page<'_>) {
    page.line("growth_factor", "1.25");
    page.line("chunk_size", 48);
    page.line("num_threads", options.threads);
    page.line("num_threads_per_udp", 0);
    page.line("stat_key_prefix", ":");
    page.flag("detail_enabled", false);
    page.line("reqs_per_event", options.max_reqs_per_event);
    page.flag("cas_enabled", !options.disable_cas);
    page.line("tcp_backlog", options.listen_backlog);
    page.line("binding_protocol", "auto-negotiate");
    page.flag("auth_enabled_sasl", false);
    page.line("auth_enabled_ascii", "no");
    page.line("item_size_max", options.max_item_size);
    page.flag("maxconns_fast", true);
    page.line("hashpower_init", 0);
    page.flag("slab_reassign", false);
    page.line("slab_automove", 0);
    page.line("slab_automove_ratio", "0.80");
    page.line("slab_automove_window", 10);
    page.line("slab_chunk_max", CHUNK_MAX);
    page.flag("flush_enabled", !options.disable_flush_all);
}

/// What has no counterpart here, as memcached shows it with the feature off.
fn constants(page: &mut Page<'_>) {
    for (name, value) in [
        ("lru_crawler", "no"),
        ("lru_crawler_sleep", "100"),
        ("lru_crawler_tocrawl", "0"),
        ("tail_repair_time", "0"),
        ("dump_enabled", "no"),
        ("hash_algorithm", "rapidhash"),
        ("lru_maintainer_thread", "no"),
        ("lru_segmented", "no"),
        ("hot_lru_pct", "20"),
        ("warm_lru_pct", "40"),
        ("hot_max_factor", "0.20"),
        ("warm_max_factor", "2.00"),
        ("temp_lru", "no"),
        ("temporary_ttl", "61"),
        ("idle_timeout", "0"),
        ("watcher_logbuf_size", "262144"),
        ("worker_logbuf_size", "65536"),
        ("read_buf_mem_limit", "0"),
        ("track_sizes", "no"),
        ("inline_ascii_response", "no"),
        ("drop_privileges", "no"),
        ("num_napi_ids", "0"),
        ("memory_file", "(null)"),
        ("client_flags_size", "4"),
    ] {
        page.line(name, value);
    }
}

fn name(options: &Options) -> &'static str {
    match options.engine {
        EngineKind::Segment => "segment",
        EngineKind::Moka => "moka",
        EngineKind::Dashmap => "dashmap",
    }
}
