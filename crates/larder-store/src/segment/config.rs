//! How a segment cache is set up.

use crate::SizeClasses;
use std::fmt;

/// How a cache is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// All memory that items, index and bookkeeping may use, in bytes.
    pub limit_bytes: usize,
    /// Keep a CAS for each item: 8 bytes.
    pub cas: bool,
    /// How items are counted by size.
    pub classes: SizeClasses,
    /// For the hash function. Drawn at random by who starts a cache, so that nobody can choose keys
    /// that collide.
    pub seed: u64,
    /// Drop items to make room. Else a full cache refuses.
    pub evict: bool,
    /// The largest value in bytes; at most half of the limit can be stored.
    pub item_size_max: usize,
    /// How many handles will write: sizes the reserve and how many segments each may have open.
    pub threads: usize,
    /// How much the size of items counts when room is made: 0, not at all; 1, as few items as
    /// possible are dropped, however many bytes these are. [`crate::eviction::SIZE_EXPONENT`] is
    /// between the two.
    pub size_exponent: f64,
}

impl Config {
    /// Bytes that an item takes beside key and value, index word and ghosts included, as a rule.
    pub(super) fn overhead(&self) -> usize {
        if self.cas { 31 } else { 23 }
    }
}

/// Why a cache could not be set up.
#[derive(Debug)]
pub enum ConfigError {
    /// The limit is below what index, queues and reserve need, or beyond what locations reach.
    Limit {
        /// The smallest limit in bytes.
        min: usize,
        /// The largest, of what it may ever be raised to.
        max: u64,
    },
    /// The system gave no memory.
    Map(std::io::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { min, max } => {
                write!(f, "the memory limit must be {min} to {max} bytes")
            }
            Self::Map(error) => write!(f, "the system refused the memory: {error}"),
        }
    }
}

impl std::error::Error for ConfigError {}
