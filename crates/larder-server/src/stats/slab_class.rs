//! The slabs that memcached would need for the items of a size class, for `stats slabs`.
//!
//! Monitoring agents compare pages and chunks with the memory limit. In Larder, more items may fit
//! under the limit than in memcached. If memcached's chunks for these items would exceed the limit,
//! the shown sizes are scaled down to the limit.

use super::snapshot::Snapshot;
use crate::memory::slab_classes::PAGE_LEN;

/// The chunks and pages of a size class.
pub(super) struct SlabClass {
    pub(super) chunk_size: u64,
    pub(super) chunks_per_page: u64,
    pub(super) chunks: u64,
    pub(super) used_chunks: u64,
    pub(super) pages: u64,
    pub(super) mem_requested: u64,
}

impl SlabClass {
    pub(super) fn new(snapshot: &Snapshot<'_>, class: usize) -> Self {
        let gauges = snapshot.gauges().classes.get(class).copied().unwrap_or_default();
        let bound = snapshot.server.settings.limits.classes.bound(class) as u64;
        let sizes = Sizes {
            bound,
            chunk_bytes: chunk_bytes(snapshot),
            limit: snapshot.gauges().limit_bytes,
            counted: snapshot.gauges().bytes,
            held: snapshot.item_bytes(),
        };
        Self::of(gauges.items, gauges.bytes, sizes, snapshot.is_full())
    }

    /// Computes the slabs of a class. `items` and `bytes` are the number and the total size of its
    /// items.
    fn of(items: u64, bytes: u64, sizes: Sizes, is_full: bool) -> Self {
        let used_chunks = items.max(bytes.div_ceil(sizes.bound));
        let chunk_size = sizes.scaled(sizes.bound).clamp(1, PAGE_LEN as u64);
        let chunks_per_page = PAGE_LEN as u64 / chunk_size;
        // In memcached, a class evicts only when all of its chunks are used. So a full cache has no
        // unused chunks.
        let (pages, chunks) = if is_full {
            ((used_chunks / chunks_per_page).max(used_chunks.min(1)), used_chunks)
        } else {
            let pages = used_chunks.div_ceil(chunks_per_page);
            (pages, pages * chunks_per_page)
        };
        let mem_requested = scale(bytes, sizes.held, sizes.counted);
        Self { chunk_size, chunks_per_page, chunks, used_chunks, pages, mem_requested }
    }
}

/// Returns the total size, in bytes, of the chunks that memcached would use for all items.
fn chunk_bytes(snapshot: &Snapshot<'_>) -> u64 {
    let classes = snapshot.gauges().classes.iter().enumerate();
    let chunks = classes.map(|(class, gauges)| {
        let bound = snapshot.server.settings.limits.classes.bound(class) as u64;
        gauges.items.max(gauges.bytes.div_ceil(bound)) * bound
    });
    chunks.sum()
}

/// Sizes in bytes.
#[derive(Clone, Copy)]
struct Sizes {
    /// The maximum item size in this class.
    bound: u64,
    /// The total size of the chunks that memcached would need for all items.
    chunk_bytes: u64,
    /// The memory limit.
    limit: u64,
    /// The bytes that memcached would count for all items.
    counted: u64,
    /// The bytes that `stats` shows for all items: the minimum of [`Self::counted`] and the memory
    /// that the items take in Larder.
    held: u64,
}

impl Sizes {
    /// Scales the size of a chunk down if memcached's chunks would exceed the limit.
    fn scaled(&self, bytes: u64) -> u64 {
        scale(bytes, self.limit, self.chunk_bytes)
    }
}

/// Scales a part down so that all parts sum to at most `most`. `total` is the sum of the unscaled
/// parts.
fn scale(part: u64, most: u64, total: u64) -> u64 {
    if most >= total {
        return part;
    }
    let scaled = u128::from(part) * u128::from(most) / u128::from(total);
    u64::try_from(scaled).unwrap_or(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_take_no_more_memory_than_the_items() {
        let (counted, held) = (10_000 * 80, 10_000 * 30);
        let sizes =
            Sizes { bound: 96, chunk_bytes: 10_000 * 80, limit: 10_000 * 40, counted, held };
        let class = SlabClass::of(10_000, 10_000 * 80, sizes, false);
        assert_eq!((class.chunk_size, class.chunks_per_page, class.pages), (48, 21_845, 1));
        assert_eq!(
            (class.used_chunks, class.chunks, class.mem_requested),
            (10_000, 21_845, 300_000)
        );
        let class = SlabClass::of(50_000, 50_000 * 80, sizes, true);
        assert_eq!((class.used_chunks, class.chunks, class.pages), (50_000, 50_000, 2));
    }

    #[test]
    fn slabs_are_memcached_s_if_they_fit() {
        let sizes = Sizes { bound: 96, chunk_bytes: 61, limit: 61, counted: 61, held: 61 };
        let class = SlabClass::of(1, 61, sizes, false);
        assert_eq!((class.chunk_size, class.chunks_per_page), (96, 10_922));
        assert_eq!((class.pages, class.chunks, class.mem_requested), (1, 10_922, 61));
        let empty = SlabClass::of(0, 0, sizes, true);
        assert_eq!((empty.pages, empty.chunks), (0, 0));
    }
}
