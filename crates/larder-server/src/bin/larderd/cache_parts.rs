//! Provides the cache in the form that each part of the server requires: type-erased, journaled, or
//! as a concrete type.

use larder_cluster::ReplicatedCache;
use larder_server::driver::{self, Sockets};
use larder_server::options::Options;
use larder_server::server::Server;
use larder_store::cache::Cache;
use larder_store::journal::{JournaledCache, Journals};
use larder_store::{erased, segment};
use std::io;
use std::sync::Arc;

/// A function that runs the workers until the server stops.
pub(crate) type RunWorkers = Box<dyn FnOnce(&Arc<Server>, Sockets) -> io::Result<()>>;

fn run_workers(cache: &impl Cache) -> RunWorkers {
    let cache = cache.clone();
    Box::new(move |server, sockets| driver::run(server, &cache, sockets))
}

/// One cache, in each form that a part of the server requires.
pub(crate) struct CacheParts {
    /// The type-erased cache. All parts use it, except the per-core workers of the segment engine.
    pub(crate) cache: erased::Cache,
    /// The cache and its journals; `None` without `--replicate-on`.
    pub(crate) replicated: Option<ReplicatedCache>,
    pub(crate) run_workers: RunWorkers,
    /// The cache of the segment engine, to finish a restart and to write the image; `None` with
    /// other engines.
    pub(crate) region: Option<segment::Cache>,
}

impl CacheParts {
    /// Wraps a cache of the segment engine. The workers are compiled for this concrete type, once
    /// with and once without journals. Workers do more than 90 % of the server's work, and
    /// type-erased calls would slow them down.
    pub(crate) fn segment(cache: &segment::Cache, options: &Options) -> Self {
        let region = Some(cache.clone());
        match journals(options) {
            None => Self { region, run_workers: run_workers(cache), ..Self::plain(cache) },
            Some(journals) => {
                let journaled = JournaledCache::new(cache.clone(), journals);
                let run_workers = run_workers(&journaled);
                Self { region, run_workers, ..Self::replicated(&journaled) }
            }
        }
    }

    /// Wraps a cache of another engine. The workers use the type-erased cache.
    #[cfg(any(feature = "dashmap", feature = "delayed", feature = "moka"))]
    pub(crate) fn other(cache: &impl Cache, options: &Options) -> Self {
        match journals(options) {
            None => Self::plain(cache),
            Some(journals) => Self::replicated(&JournaledCache::new(cache.clone(), journals)),
        }
    }

    fn plain(cache: &impl Cache) -> Self {
        Self {
            cache: erased::Cache::new(cache.clone()),
            replicated: None,
            run_workers: Box::new(driver::run_any),
            region: None,
        }
    }

    fn replicated<C: Cache>(cache: &JournaledCache<C>) -> Self {
        let served = Self::plain(cache);
        let replicated = ReplicatedCache {
            journaled: served.cache.clone(),
            plain: erased::Cache::new(cache.inner().clone()),
            journals: Arc::clone(cache.journals()),
        };
        Self { replicated: Some(replicated), ..served }
    }
}

/// Creates the journals. Returns `None` without `--replicate-on`.
fn journals(options: &Options) -> Option<Arc<Journals>> {
    options.replicate_on.as_ref()?;
    Some(Journals::new(options.journal_bytes(), options.writers()))
}
