//! `stats settings`.

use super::Page;
use crate::auth;
use crate::options::{EngineKind, Options, Runtime};
use crate::server::Server;
use crate::slab_classes::CHUNK_MAX;
use larder_protocol::{Parser, Streams};

pub(super) fn page(server: &Server, page: &mut Page<'_>) {
    let options = &server.options;
    network(server, options, page);
    memory(server, options, page);
    tuned(server, page);
    constants(server, page);
    page.line("engine", engine(options));
    page.line("runtime", runtime(options));
    if options.engine.is_segment() {
        page.line("size_exponent", options.size_exponent());
    }
}

fn network(server: &Server, options: &Options, page: &mut Page<'_>) {
    let or_null = |text: String| if text.is_empty() { "NULL".to_owned() } else { text };
    let socket = options.unix_socket.as_ref().map(|path| path.display().to_string());
    page.line("maxbytes", server.memory().limit);
    page.line("maxconns", options.conn_limit);
    page.line("tcpport", if socket.is_some() { 0 } else { options.port.max(0) });
    page.line("udpport", if socket.is_some() { 0 } else { options.udp_port.max(0) });
    page.line("inter", or_null(options.listen.join(",")));
    page.line("verbosity", server.verbosity());
    page.line("oldest", 0);
    page.line("evictions", if options.disable_evictions { "off" } else { "on" });
    page.line("domain_socket", or_null(socket.unwrap_or_default()));
    page.line("umask", format_args!("{:o}", options.unix_mask));
    page.flag("shutdown_command", options.enable_shutdown);
}

fn memory(server: &Server, options: &Options, page: &mut Page<'_>) {
    page.line("growth_factor", "1.25");
    page.line("chunk_size", 48);
    page.line("num_threads", options.threads);
    page.line("num_threads_per_udp", 0);
    let delimiter = options.prefix_delimiter.unwrap_or(b':');
    page.line("stat_key_prefix", char::from(delimiter));
    page.flag("detail_enabled", server.log.observed().has(Streams::PREFIXES));
    page.line("reqs_per_event", options.max_reqs_per_event);
    page.flag("cas_enabled", !options.disable_cas);
    page.line("tcp_backlog", options.listen_backlog);
    page.line("binding_protocol", protocol(options));
    page.flag("auth_enabled_sasl", options.enable_sasl);
    let text_logins = options.auth_file.as_ref().map(|path| path.display().to_string());
    page.line("auth_enabled_ascii", text_logins.as_deref().unwrap_or("no"));
    page.line("item_size_max", options.max_item_size);
    page.flag("maxconns_fast", options.suboptions.maxconns_fast);
    page.line("hashpower_init", 0);
    page.flag("slab_reassign", false);
}

/// What operators may have changed, and what stands between it.
fn tuned(server: &Server, page: &mut Page<'_>) {
    let tuned = server.controls.tuned();
    page.line("slab_automove", tuned.slab_automove);
    page.line("slab_automove_ratio", format_args!("{:.2}", tuned.slab_automove_ratio));
    page.line("slab_automove_window", tuned.slab_automove_window);
    page.line("slab_chunk_max", CHUNK_MAX);
    page.flag("lru_crawler", server.controls.crawler_enabled());
    page.line("lru_crawler_sleep", tuned.lru_crawler_sleep);
    page.line("lru_crawler_tocrawl", tuned.lru_crawler_tocrawl);
    page.line("tail_repair_time", 0);
    page.flag("flush_enabled", !server.options.disable_flush_all);
    page.flag("dump_enabled", !server.options.disable_dumping);
    page.line("hash_algorithm", "rapidhash");
    page.flag("lru_maintainer_thread", false);
    page.flag("lru_segmented", false);
    page.line("hot_lru_pct", tuned.hot_lru_pct);
    page.line("warm_lru_pct", tuned.warm_lru_pct);
    page.line("hot_max_factor", format_args!("{:.2}", tuned.hot_max_factor));
    page.line("warm_max_factor", format_args!("{:.2}", tuned.warm_max_factor));
}

/// What has no counterpart here, as memcached shows it with the feature off.
fn constants(server: &Server, page: &mut Page<'_>) {
    let set = &server.options.suboptions;
    page.line("temp_lru", "no");
    page.line("temporary_ttl", 61);
    page.line("idle_timeout", set.idle_timeout);
    page.line("watcher_logbuf_size", set.watcher_logbuf_size);
    page.line("worker_logbuf_size", 65_536);
    page.line("read_buf_mem_limit", set.read_buf_mem_limit);
    page.flag("track_sizes", server.controls.tracks_sizes());
    for name in ["inline_ascii_response", "drop_privileges"] {
        page.line(name, "no");
    }
    super::tls::settings(server, page);
    for (name, value) in
        [("num_napi_ids", "0"), ("memory_file", "(null)"), ("client_flags_size", "4")]
    {
        page.line(name, value);
    }
}

fn protocol(options: &Options) -> &'static str {
    match auth::opening(options) {
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
