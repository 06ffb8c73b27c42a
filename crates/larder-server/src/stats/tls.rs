//! What statistics say of TLS.

use super::Page;
use crate::options::tls::{KeyFormat, VerifyMode, Version};
use crate::server::Server;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// Of `stats`: what went wrong, under `-Z`.
pub(super) fn counts(server: &Server, page: &mut Page<'_>) {
    let Some(tls) = &server.tls else { return };
    let counts = tls.counts();
    if server.options.suboptions.tls.session_cache {
        page.line("ssl_new_sessions", counts.new_sessions.load(Relaxed));
    }
    page.line("ssl_handshake_errors", counts.handshake_errors.load(Relaxed));
    page.line("ssl_proto_errors", counts.proto_errors.load(Relaxed));
    page.line("time_since_server_cert_refresh", tls.since_refresh());
}

/// Of `stats settings`.
pub(super) fn settings(server: &Server, page: &mut Page<'_>) {
    let tls = &server.options.suboptions.tls;
    let path = |path: &Option<PathBuf>, none: &str| {
        path.as_ref().map_or(none.to_owned(), |path| path.display().to_string())
    };
    page.flag("ssl_enabled", server.options.enable_ssl);
    page.line("ssl_chain_cert", path(&tls.chain_cert, "(null)"));
    page.line("ssl_key", path(&tls.key, "(null)"));
    page.line("ssl_verify_mode", bits(tls.verify_mode));
    page.line("ssl_keyformat", if tls.key_format == KeyFormat::Pem { 1 } else { 2 });
    page.line("ssl_ciphers", "NULL");
    page.line("ssl_ca_cert", path(&tls.ca_cert, "NULL"));
    page.line("ssl_wbuf_size", tls.wbuf_size);
    page.flag("ssl_session_cache", tls.session_cache);
    page.line("ssl_kernel_tls", "no");
    let version = if tls.min_version == Version::Tls13 { "tlsv1.3" } else { "tlsv1.2" };
    page.line("ssl_min_version", version);
}

/// memcached shows the bits that OpenSSL has for a mode.
fn bits(mode: VerifyMode) -> u8 {
    match mode {
        VerifyMode::None => 0,
        VerifyMode::Request => 1,
        VerifyMode::Require => 3,
        VerifyMode::Once => 7,
    }
}
