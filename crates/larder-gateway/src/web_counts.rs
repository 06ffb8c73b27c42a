//! Counters of HTTP and gRPC.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The gateway's counters of HTTP and gRPC. The server owns the counters, so that the metrics
/// thread can also report them.
#[derive(Debug, Default)]
pub struct WebCounts {
    is_used: AtomicBool,
    open: AtomicUsize,
    accepted: AtomicU64,
    http_requests: AtomicU64,
    grpc_requests: AtomicU64,
    /// Memory reserved for the gateway's connections, requests and replies, in bytes.
    #[cfg(feature = "http")]
    reserved: AtomicUsize,
    /// The memory, in bytes, that request heads use while the requests wait for memory.
    #[cfg(feature = "http")]
    waiting: AtomicUsize,
    /// Notified whenever reserved memory is released.
    #[cfg(feature = "http")]
    freed: tokio::sync::Notify,
}

impl WebCounts {
    /// Returns whether the server serves HTTP or gRPC.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Returns the number of accepted connections, excluding those that were refused for lack of
    /// memory.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// Returns the number of HTTP requests and the number of gRPC requests.
    pub(crate) fn requests(&self) -> (u64, u64) {
        (self.http_requests.load(Relaxed), self.grpc_requests.load(Relaxed))
    }
}

#[cfg(feature = "http")]
impl WebCounts {
    /// Records that the server serves HTTP or gRPC.
    pub(crate) fn note_use(&self) {
        self.is_used.store(true, Relaxed);
    }

    pub(crate) fn count_request(&self, is_grpc: bool) {
        let count = if is_grpc { &self.grpc_requests } else { &self.http_requests };
        count.fetch_add(1, Relaxed);
    }

    /// Adds `len` bytes to the reserved memory, and returns the new total.
    pub(crate) fn count_reserved(&self, len: usize) -> usize {
        self.reserved.fetch_add(len, Relaxed) + len
    }

    pub(crate) fn count_released(&self, len: usize) {
        self.reserved.fetch_sub(len, Relaxed);
    }

    /// Adds `len` bytes to the memory of waiting requests, and returns the new total.
    pub(crate) fn count_waiting(&self, len: usize) -> usize {
        self.waiting.fetch_add(len, Relaxed) + len
    }

    /// Returns the memory in bytes that the heads of waiting requests use.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    pub(crate) fn count_waited(&self, len: usize) {
        self.waiting.fetch_sub(len, Relaxed);
    }

    /// Returns the notifier for released memory. It wakes requests that wait for memory.
    pub(crate) fn freed(&self) -> &tokio::sync::Notify {
        &self.freed
    }

    pub(crate) fn count_opened(&self) {
        self.open.fetch_add(1, Relaxed);
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_closed(&self) {
        self.open.fetch_sub(1, Relaxed);
    }
}
