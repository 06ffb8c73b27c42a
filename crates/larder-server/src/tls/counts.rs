//! TLS counters for all connections of a server.

use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Counts of connections, sessions and errors.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names are memcached's own")]
pub struct TlsCounts {
    /// Open TLS connections.
    pub(crate) open: AtomicUsize,
    /// Handshakes that started a new session.
    pub new_sessions: AtomicU64,
    pub handshake_errors: AtomicU64,
    pub proto_errors: AtomicU64,
}
