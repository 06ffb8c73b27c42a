//! memcached's slab classes, for statistics only. Larder has no slabs, but exporters and operators
//! expect the classes in `stats items` and `stats slabs`.

use larder_store::SizeClasses;

/// memcached's overhead per item in addition to key, value and client flags, in bytes: the header,
/// the terminator of the key, and the CRLF after the value.
const ITEM_OVERHEAD: usize = 48 + 1 + 2;
/// The length of a CAS value in memcached, in bytes.
const CAS_LEN: usize = 8;

/// The size of memcached's smallest chunk, in bytes: `-n 48` and its header.
const CHUNK_MIN: f64 = 96.0;
/// The default growth factor of chunk sizes (`-f`).
const GROWTH_FACTOR: f64 = 1.25;
/// The size of the largest chunk, half a page, in bytes. memcached stores longer items in several
/// chunks.
pub const CHUNK_MAX: usize = 512 << 10;
/// The size of a page, in bytes.
pub const PAGE_LEN: usize = 1 << 20;

#[expect(clippy::cast_possible_truncation, reason = "memcached cuts the fraction off too")]
/// Returns the chunk sizes of memcached's classes with its default options, from class 1.
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

/// Returns the size classes of the statistics. `cas` is false with `-C`.
#[must_use]
pub fn size_classes(cas: bool) -> SizeClasses {
    SizeClasses::new(chunk_sizes(), ITEM_OVERHEAD + if cas { CAS_LEN } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_equal_those_of_memcached() {
        let sizes = chunk_sizes();
        assert_eq!(sizes.len(), 39);
        assert_eq!(sizes[..8], [96, 120, 152, 192, 240, 304, 384, 480]);
        assert_eq!(sizes[36..], [315_872, 394_840, 524_288]);
    }

    #[test]
    fn an_item_has_the_footprint_and_class_of_memcached() {
        let classes = size_classes(true);
        assert_eq!(classes.footprint(1, 1, 0), 61);
        assert_eq!(classes.class_of(96), 0);
        assert_eq!(classes.class_of(97), 1);
        assert_eq!(classes.class_of(1 << 20), 38);
    }
}
