//! The slabs that memcached would need for the items of a size class, for `stats slabs`.

use super::snapshot::Snapshot;
use crate::memory::slab_classes::PAGE_LEN;

/// The chunks and pages that memcached would need for the items of a size class.
pub(super) struct SlabClass {
    pub(super) chunk_size: u64,
    pub(super) chunks_per_page: u64,
    pub(super) used_chunks: u64,
    pub(super) pages: u64,
}

impl SlabClass {
    pub(super) fn new(snapshot: &Snapshot<'_>, class: usize) -> Self {
        let gauges = snapshot.gauges().classes.get(class).copied().unwrap_or_default();
        let chunk_size = snapshot.server.settings.limits.classes.bound(class) as u64;
        let chunks_per_page = PAGE_LEN as u64 / chunk_size;
        let used_chunks = gauges.items.max(gauges.bytes.div_ceil(chunk_size));
        let pages = used_chunks.div_ceil(chunks_per_page);
        Self { chunk_size, chunks_per_page, used_chunks, pages }
    }

    pub(super) fn chunks(&self) -> u64 {
        self.pages * self.chunks_per_page
    }
}
