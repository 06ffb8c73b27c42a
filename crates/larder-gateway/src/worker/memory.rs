//! Memory that values hold on their way.

use bytes::Bytes;
use larder_store::Lease;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Large values that are being sent may hold this share of memory, and those that are being received, too:
/// what slow peers hold is missing for the clients of other protocols.
pub(super) const HELD_SHARE: u64 = 16;

/// How many bytes of a value are sent to another server at once.
pub(super) const PIECE_LEN: usize = 256 << 10;

/// A count that is lowered again when this is dropped.
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

/// The reply of another server, with its memory if that is counted.
pub(super) struct Reply {
    pub(super) bytes: Vec<u8>,
    pub(super) _held: Option<CountGuard>,
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A part of a large value that is contiguous in memory.
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
