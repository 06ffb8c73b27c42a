//! Rows of TLS in `stats` and `stats settings`.

use crate::options;
use crate::stats::row::Source::Server;
use crate::stats::row::Unit::{Bytes, Seconds};
use crate::stats::row::{Condition, Row, Value};
use crate::stats::snapshot::Snapshot;
use crate::tls::Tls;
use larder_support::tls::{KeyFormat, VerifyMode, Version};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const TLS: Condition = Condition::new("under `-Z`", |s, _| s.server.access.tls.is_some());
const SESSION_CACHE: Condition =
    Condition::new("under `-Z` with `-o ssl_session_cache`", |s, _| {
        s.server.access.tls.is_some() && options(s).session_cache
    });

pub(in crate::stats) const GENERAL: &[Row] = &[
    Row::counter(
        "ssl_new_sessions",
        Server(|s| tls(s, |tls| load(&tls.counts().new_sessions))),
        "Handshakes that started a new session ([tls.md](tls.md#new-certificates)).",
    )
    .metric("larder_tls_sessions_total", &[])
    .shown(SESSION_CACHE),
    Row::counter(
        "ssl_handshake_errors",
        Server(|s| tls(s, |tls| load(&tls.counts().handshake_errors))),
        "Connections that were closed because the handshake failed.",
    )
    .metric("larder_tls_errors_total", &[("stage", "handshake")])
    .shown(TLS),
    Row::counter(
        "ssl_proto_errors",
        Server(|s| tls(s, |tls| load(&tls.counts().proto_errors))),
        "Connections that were closed because of a protocol error after the handshake.",
    )
    .metric("larder_tls_errors_total", &[("stage", "data")])
    .shown(TLS),
    Row::gauge(
        "time_since_server_cert_refresh",
        Server(|s| tls(s, |tls| tls.since_refresh().into())),
        "Time since the certificate files were last read.",
    )
    .unit(Seconds)
    .metric("larder_tls_certificate_refresh_age_seconds", &[])
    .shown(TLS),
];

pub(in crate::stats) const SETTINGS: &[Row] = &[
    Row::text(
        "ssl_enabled",
        Server(|s| s.server.options.enable_ssl.into()),
        "Whether TLS is enabled (`-Z`).",
    ),
    Row::text(
        "ssl_chain_cert",
        Server(|s| path(options(s).chain_cert.as_deref(), "(null)")),
        "File of the certificate chain.",
    ),
    Row::text(
        "ssl_key",
        Server(|s| path(options(s).key.as_deref(), "(null)")),
        "File of the private key.",
    ),
    Row::gauge(
        "ssl_verify_mode",
        Server(|s| bits(options(s).verify_mode)),
        "Certificates that clients must show, in OpenSSL's bits: 0 nothing, 1 a certificate, 3 and 7 a \
         certificate without which they are refused.",
    ),
    Row::gauge(
        "ssl_keyformat",
        Server(|s| Value::Whole(if options(s).key_format == KeyFormat::Pem { 1 } else { 2 })),
        "Format of the private key file: 1: PEM, 2: DER.",
    ),
    Row::constant("ssl_ciphers", "NULL", "There are no weak cipher suites to leave out."),
    Row::text(
        "ssl_ca_cert",
        Server(|s| path(options(s).ca_cert.as_deref(), "NULL")),
        "File of the CA certificates that verify clients.",
    ),
    Row::gauge(
        "ssl_wbuf_size",
        Server(|s| options(s).wbuf_size.into()),
        "Value of `-o ssl_wbuf_size`, without effect.",
    )
    .unit(Bytes),
    Row::text(
        "ssl_session_cache",
        Server(|s| options(s).session_cache.into()),
        "Whether clients without ticket support can resume sessions.",
    ),
    Row::constant("ssl_kernel_tls", "no", "Encryption stays in the process."),
    Row::text(
        "ssl_min_version",
        Server(|s| match options(s).min_version {
            Version::Tls13 => "tlsv1.3".into(),
            _ => "tlsv1.2".into(),
        }),
        "Minimum TLS version.",
    ),
];

fn options<'s>(snapshot: &Snapshot<'s>) -> &'s options::Tls {
    &snapshot.suboptions().tls
}

/// Returns a value from the TLS state, or 0 without `-Z`.
fn tls(snapshot: &Snapshot<'_>, read: impl FnOnce(&Tls) -> Value) -> Value {
    snapshot.server.access.tls.as_deref().map_or(Value::Whole(0), read)
}

fn load(count: &AtomicU64) -> Value {
    count.load(Relaxed).into()
}

fn path(path: Option<&Path>, none: &'static str) -> Value {
    path.map_or(none.into(), |path| path.display().to_string().into())
}

/// Returns the mode as OpenSSL's bit mask, as in memcached.
fn bits(mode: VerifyMode) -> Value {
    Value::Whole(match mode {
        VerifyMode::None => 0,
        VerifyMode::Request => 1,
        VerifyMode::Require => 3,
        VerifyMode::Once => 7,
    })
}
