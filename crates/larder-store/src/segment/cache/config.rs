//! The configuration of a segment cache.

use crate::segment::index::word::REGION_MAX;
use crate::segment::memory::layout::{Shape, limit_min};
use crate::{FlashConfig, SizeClasses};
use std::fmt;

/// The configuration of a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// The limit on the total memory for items, index and bookkeeping, in bytes.
    pub limit_bytes: usize,
    /// Whether each item has a CAS, which takes 8 bytes.
    pub cas: bool,
    /// The size classes of the statistics.
    pub classes: SizeClasses,
    /// The seed of the hash function. The program that starts a cache chooses the seed at random,
    /// so that clients can't choose keys that collide.
    pub seed: u64,
    /// Whether to evict items to make room. If false, a full cache refuses stores.
    pub evict: bool,
    /// The maximum length of a value in bytes. The cache also refuses uploads of more than half the
    /// memory limit.
    pub item_size_max: usize,
    /// The number of handles that write. It determines the reserve of free segments, and the
    /// maximum number of open segments of each handle.
    pub threads: usize,
    /// The weight of item size in eviction, from 0 (none) to 1 (evict as few items as possible,
    /// however large). The default is [`crate::eviction::SIZE_EXPONENT`].
    pub size_exponent: f64,
    /// The flash tier for evicted items; `None` for a cache without one.
    pub flash: Option<FlashConfig>,
}

impl Config {
    /// Returns the shape of a region for the configured limit. The limit can later be raised to
    /// `limit_bytes_max`.
    pub(crate) fn shape(&self, limit_bytes_max: usize) -> Result<Shape, ConfigError> {
        let classes = self.classes.count();
        let shape = Shape::new(self.limit_bytes, limit_bytes_max, self.threads, classes);
        shape.ok_or(ConfigError::Limit { min: limit_min(classes), max: REGION_MAX })
    }

    /// Returns the memory in bytes that a typical item takes in addition to its key and value. The
    /// number includes the item's index word and its share of the ghosts.
    pub(crate) fn overhead(&self) -> usize {
        if self.cas { 31 } else { 23 }
    }
}

/// The reason why a cache could not be created.
#[derive(Debug)]
pub enum ConfigError {
    /// The limit is too low for index, queues and reserve, or higher than index words can address.
    Limit {
        /// The lowest possible limit, in bytes.
        min: usize,
        /// The highest possible limit, in bytes.
        max: u64,
    },
    /// The flash has too many pages: their table would take more than a quarter of the limit.
    Pages {
        /// The maximum number of pages.
        max: usize,
    },
    /// Too little memory is free within the limit for the table of flash pages and the flash read
    /// buffers.
    NoRoomForFlash,
    /// Writing to the flash failed.
    Flash(std::io::Error),
    /// The file for the memory of the cache contains other data, or the input is not an image.
    Occupied,
    /// The system refused the memory, or the file for the memory can't be used.
    Map(std::io::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { min, max } => {
                write!(f, "the memory limit must be {min} to {max} bytes")
            }
            Self::Pages { max } => {
                write!(f, "the flash has too many pages: at most {max} under this limit")
            }
            Self::NoRoomForFlash => f.write_str(
                "memory is too full for a flash tier: raise the limit, or start without flash",
            ),
            Self::Flash(error) => write!(f, "the flash can't be written to: {error}"),
            Self::Occupied => f.write_str(
                "the file contains something else than a cache: give another one, or remove it",
            ),
            Self::Map(error) => write!(f, "the system refused the memory: {error}"),
        }
    }
}

impl std::error::Error for ConfigError {}
