//! Memory of values that are being sent or received.

use bytes::Bytes;
use larder_store::Lease;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All large values that are being sent may together use the cache's memory limit divided by this
/// number. Another share of the same size limits all large values that are being received. These
/// limits prevent slow peers from using up the cache's memory.
pub(super) const HELD_SHARE: u64 = 16;

/// The maximum length, in bytes, of the pieces in which a value is sent to another server.
pub(super) const PIECE_LEN: usize = 256 << 10;

/// A guard that adds to a counter, and subtracts the same number on drop.
pub(super) struct CountGuard {
    count: Arc<AtomicUsize>,
    by: usize,
}

impl CountGuard {
    pub(super) fn new(count: &Arc<AtomicUsize>, by: usize) -> Self {
        count.fetch_add(by, Ordering::Relaxed);
        Self { count: Arc::clone(count), by }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.count.fetch_sub(self.by, Ordering::Relaxed);
    }
}

/// Another server's reply. A long reply's memory is counted until the reply is dropped.
pub(super) struct Reply {
    pub(super) bytes: Vec<u8>,
    pub(super) _held: Option<CountGuard>,
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A contiguous part of a large value in the cache. It starts at `offset` in the value.
struct Piece<L> {
    lease: L,
    offset: usize,
    _held: Arc<CountGuard>,
}

impl<L: Lease> AsRef<[u8]> for Piece<L> {
    fn as_ref(&self) -> &[u8] {
        self.lease.piece(self.offset)
    }
}

pub(super) fn pieces<L: Lease + Send + 'static>(lease: &L, held: &Arc<CountGuard>) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < lease.len() {
        let piece = Piece { lease: lease.clone(), offset, _held: Arc::clone(held) };
        let bytes = Bytes::from_owner(piece);
        offset += bytes.len();
        pieces.push(bytes);
    }
    pieces
}
