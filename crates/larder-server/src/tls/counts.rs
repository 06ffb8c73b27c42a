//! Counts of TLS, for all connections of a server.

use std::sync::atomic::{AtomicU64, AtomicUsize};

/// What went wrong, and what sessions were begun.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names are memcached's own")]
pub struct TlsCounts {
    /// Connections that are encrypted, now.
    pub(crate) open: AtomicUsize,
    /// Handshakes that resumed nothing.
    pub new_sessions: AtomicU64,
    pub handshake_errors: AtomicU64,
    pub proto_errors: AtomicU64,
}
