//! The settings of a cache.

use crate::cache::Cache;
use crate::clock::Clock;
use crate::core::Core;
use crate::listener::{self, Evicted, Listener};
use crate::maintenance;
use crate::workers::Workers;
use larder_operations::Limits;
use larder_store::segment::{self, Config, ConfigError};
use larder_store::{SizeClasses, eviction};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::{fmt, io, thread};

/// The default memory in bytes: 64 MiB.
const MEMORY: usize = 64 << 20;

/// The settings of a cache: see [`Cache::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    memory: usize,
    item_size_max: usize,
    threads: Option<usize>,
    has_versions: bool,
    listener: Option<Listener>,
}

impl Cache {
    /// Returns the settings of a new cache.
    pub fn builder() -> Builder {
        Builder {
            memory: MEMORY,
            item_size_max: usize::MAX,
            threads: None,
            has_versions: false,
            listener: None,
        }
    }
}

impl Builder {
    /// Sets the memory for items, index and bookkeeping together, in bytes. The default is 64 MiB.
    /// The minimum is about 0.5 MiB, and [`BuildError::Memory`] contains the exact number.
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Sets the maximum length of an item, key and value together, in bytes. By default, there is
    /// no limit. The cache also refuses a value that is longer than half of the memory.
    pub fn item_size_max(self, bytes: usize) -> Self {
        Self { item_size_max: bytes, ..self }
    }

    /// Sets the expected number of threads that write at the same time, which determines the memory
    /// that the cache reserves for writes. A larger number of threads may use the cache. The
    /// default is the available parallelism of the process.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads.max(1)), ..self }
    }

    /// Sets whether values have versions, for [`Cache::compare_and_swap`]. Each item then needs 8
    /// more bytes. The default is false.
    pub fn versions(self, has_versions: bool) -> Self {
        Self { has_versions, ..self }
    }

    /// Sets a function that the cache calls for each item that it evicts to make room. The cache
    /// does not call the function for items that expire or are removed, replaced or cleared.
    ///
    /// If an insert or a removal evicts the item, the thread that runs this operation calls the
    /// listener after the operation has taken effect and before it returns. If maintenance evicts
    /// the item, the cache's own thread calls the listener. The listener may use the cache. If the
    /// listener panics during an insert or a removal, the operation has already taken effect, and
    /// the panic unwinds to its caller. The cache's own thread catches a panic of the listener. If
    /// the listener owns a clone of the cache, the cache is never freed.
    pub fn on_evict(self, listener: impl Fn(&Evicted) + Send + Sync + 'static) -> Self {
        Self { listener: Some(Arc::new(listener)), ..self }
    }

    /// Creates the cache: reserves its address space, and starts its thread. The cache allocates
    /// memory as items are added, not at its creation.
    ///
    /// # Errors
    /// [`BuildError`]: the memory is out of range, or the system refuses memory or the thread.
    pub fn build(self) -> Result<Cache, BuildError> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let threads = self.threads.unwrap_or_else(|| {
            thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
        });
        let classes = SizeClasses::new(vec![1 << 20], 0);
        let store = segment::Cache::new(Config {
            limit_bytes: self.memory,
            cas: self.has_versions,
            classes: classes.clone(),
            // The seed is random, so that clients cannot choose keys with predictable hashes.
            seed: RandomState::new().hash_one(self.memory),
            evict: true,
            item_size_max: self.item_size_max,
            threads,
            size_exponent: eviction::SIZE_EXPONENT,
            flash: None,
        })?;
        let has_listener = self.listener.is_some();
        if let Some(listener) = self.listener {
            store.observe_evictions(Box::new(move |eviction| listener::note(&listener, eviction)));
        }
        let item_size_max = self.item_size_max;
        let limits = Limits { item_size_max, classes, prefix_delimiter: b':' };
        let (waker, wake) = mpsc::sync_channel(1);
        let core = Arc::new(Core {
            id: IDS.fetch_add(1, Relaxed),
            clock: Clock::new(),
            workers: Workers::new(store.clone(), limits),
            store,
            has_listener,
            has_versions: self.has_versions,
            waker,
        });
        maintenance::start(&core, wake).map_err(BuildError::System)?;
        Ok(Cache { core })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("memory", &self.memory)
            .field("item_size_max", &self.item_size_max)
            .field("threads", &self.threads)
            .field("has_versions", &self.has_versions)
            .field("has_listener", &self.listener.is_some())
            .finish()
    }
}

/// The error of [`Builder::build`].
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The memory is out of range.
    Memory {
        /// The minimum memory, in bytes.
        min: usize,
        /// The maximum memory, in bytes.
        max: u64,
    },
    /// The system refused memory or a thread.
    System(io::Error),
}

impl From<ConfigError> for BuildError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Limit { min, max } => Self::Memory { min, max },
            ConfigError::Map(error) => Self::System(error),
            other => Self::System(io::Error::other(other)),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { min, max } => {
                write!(f, "the memory of a cache must be {min} to {max} bytes")
            }
            Self::System(error) => write!(f, "the system refused memory or a thread: {error}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::System(error) = self { Some(error) } else { None }
    }
}
