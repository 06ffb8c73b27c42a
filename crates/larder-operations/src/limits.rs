//! The limits of operations.

use larder_store::SizeClasses;

/// Limits of operations, and the size classes of statistics.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The maximum size of an item in bytes, counted as memcached does (`-I`).
    pub item_size_max: usize,
    /// memcached's slab classes.
    pub classes: SizeClasses,
    /// The byte that ends the prefix of a key (`-D`).
    pub prefix_delimiter: u8,
}

impl Limits {
    /// Returns the size of an item in bytes, counted as memcached does.
    #[inline]
    #[must_use]
    pub fn footprint(&self, key_len: usize, value_len: usize, client_flags: u32) -> usize {
        self.classes.footprint(key_len, value_len, client_flags)
    }

    /// Returns the size class of an item, counted from 0.
    #[inline]
    #[must_use]
    pub fn class_of(&self, key_len: usize, value_len: usize, client_flags: u32) -> usize {
        self.classes.class_of(self.footprint(key_len, value_len, client_flags))
    }
}
