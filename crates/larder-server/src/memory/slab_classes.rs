//! memcached's slab classes, for statistics alone. Larder has none, but exporters and operators read
//! `stats items` and `stats slabs` by class.

use larder_store::SizeClasses;

/// What memcached keeps for each item beside key, value and client flags, in bytes: header, the
/// key's end, the value's CRLF.
const ITEM_OVERHEAD: usize = 48 + 1 + 2;
/// What memcached keeps for the CAS value of an item, in bytes.
const CAS_LEN: usize = 8;

/// memcached's smallest chunk: `-n 48` and its header.
const CHUNK_MIN: f64 = 96.0;
/// The growth factor of chunk sizes (`-f`).
const GROWTH_FACTOR: f64 = 1.25;
/// The largest chunk, half a page: longer items are several chunks.
pub const CHUNK_MAX: usize = 512 << 10;
/// The size of a page.
pub const PAGE_LEN: usize = 1 << 20;

#[expect(clippy::cast_possible_truncation, reason = "memcached cuts the fraction off too")]
/// Chunk sizes of memcached's classes at its defaults, from class 1.
fn chunk_sizes() -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut size = CHUNK_MIN;
    while size < CHUNK_MAX as f64 / GROWTH_FACTOR {
        let aligned = (size as usize).next_multiple_of(8);
        sizes.push(aligned);
        size = aligned as f64 * GROWTH_FACTOR;
    }
    sizes.push(CHUNK_MAX);
    sizes
}

/// How items are counted; `cas` is false under `-C`.
#[must_use]
pub fn size_classes(cas: bool) -> SizeClasses {
    SizeClasses::new(chunk_sizes(), ITEM_OVERHEAD + if cas { CAS_LEN } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_are_memcacheds() {
        let sizes = chunk_sizes();
        assert_eq!(sizes.len(), 39);
        assert_eq!(sizes[..8], [96, 120, 152, 192, 240, 304, 384, 480]);
        assert_eq!(sizes[36..], [315_872, 394_840, 524_288]);
    }

    #[test]
    fn an_item_counts_as_memcached_counts_it() {
        let classes = size_classes(true);
        assert_eq!(classes.footprint(1, 1, 0), 61);
        assert_eq!(classes.class_of(96), 0);
        assert_eq!(classes.class_of(97), 1);
        assert_eq!(classes.class_of(1 << 20), 38);
    }
}
