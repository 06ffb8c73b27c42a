//! Starts the engine that `--engine` selects.

use super::cache_parts::CacheParts;
use super::failure::{EX_OSERR, EX_USAGE, Failure, failure};
use super::serve::serve;
use larder_server::log::verbosity::Verbosity;
use larder_server::memory::memory_file::{self, Files, StartState};
use larder_server::memory::{Memory, flash, slab_classes};
use larder_server::options::{EngineKind, Options};
use larder_server::process::platform;
use larder_store::{LimitRefused, segment};

pub(crate) fn start(options: Options, verbosity: Verbosity) -> Result<(), Failure> {
    let classes = slab_classes::size_classes(!options.disable_cas);
    let (limit_bytes, cas) = (items_bytes(&options), !options.disable_cas);
    let seed = rand::random();
    match options.engine {
        kind @ (EngineKind::Segment | EngineKind::Delayed) => {
            let config = segment::Config {
                limit_bytes,
                cas,
                classes,
                seed,
                evict: !options.disable_evictions,
                item_size_max: options.max_item_size,
                threads: options.writers(),
                size_exponent: options.size_exponent(),
                flash: flash::open(&options).map_err(|error| failure(EX_OSERR)(&error))?,
            };
            // With -k, memory must not grow beyond -m, because the limit of locked memory may be
            // too low.
            let machine = platform::memory().filter(|_| !options.lock_memory);
            let max = Memory::items_max(options.memory_limit, machine) - options.journal_bytes();
            let (file, image) = (&options.memory_file, &options.suboptions.memory_image);
            let (cache, start) = if file.is_none() && image.is_none() {
                let cache = segment::Cache::growable(config, max);
                (cache.map_err(|error| failure(EX_USAGE)(&error))?, StartState::cold())
            } else {
                let files = Files {
                    memory: file.as_deref(),
                    image: image.as_deref(),
                    user: options.user.as_deref(),
                };
                memory_file::open(files, config, max)
                    .map_err(|error| failure(error.status())(&error))?
            };
            let options = with_limit_of(options, &cache);
            if options.enable_largepages
                && let Err(error) = cache.use_huge_pages()
            {
                tracing::warn!(
                    "-L: the system provides no huge pages: {error}; enable them in \
                     /sys/kernel/mm/transparent_hugepage/enabled, or omit -L"
                );
            }
            let served = match kind {
                #[cfg(feature = "delayed")]
                EngineKind::Delayed => {
                    let storage = larder_store::delayed::Storage::with_thread(seed)
                        .map_err(|error| failure(EX_OSERR)(&error))?;
                    let delayed = larder_store::delayed::Cache::new(cache.clone(), storage);
                    CacheParts { region: Some(cache), ..CacheParts::other(&delayed, &options) }
                }
                _ => CacheParts::segment(&cache, &options),
            };
            serve(options, served, verbosity, start)
        }
        #[cfg(feature = "dashmap")]
        EngineKind::Dashmap => {
            use larder_store::dashmap;
            let config = dashmap::Config { limit_bytes, cas, classes, seed };
            let served = CacheParts::other(&dashmap::Cache::new(config), &options);
            serve(options, served, verbosity, StartState::cold())
        }
        #[cfg(feature = "moka")]
        EngineKind::Moka => {
            use larder_server::options::EvictionPolicy;
            use larder_store::moka;
            let policy = match options.eviction_policy {
                Some(EvictionPolicy::Lru) | None => moka::Policy::Lru,
                Some(EvictionPolicy::TinyLfu) => moka::Policy::TinyLfu,
            };
            let config = moka::Config { limit_bytes, cas, classes, seed, policy };
            let served = CacheParts::other(&moka::Cache::new(config), &options);
            serve(options, served, verbosity, StartState::cold())
        }
        #[cfg(not(all(feature = "dashmap", feature = "moka")))]
        EngineKind::Dashmap | EngineKind::Moka => {
            unreachable!("Options::check refuses engines that are not in the build")
        }
    }
}

/// Returns the memory for items under `-m`, in bytes.
fn items_bytes(options: &Options) -> usize {
    Memory::new(options.memory_limit).items - options.journal_bytes()
}

/// Lowers the memory limit in the options if the memory file or its file system is too small for
/// it. An existing memory file keeps the maximum size with which an earlier process created it.
fn with_limit_of(mut options: Options, cache: &segment::Cache) -> Options {
    let max = usize::try_from(cache.gauges().limit_bytes).unwrap_or(usize::MAX);
    if max < items_bytes(&options) {
        let max = max + options.journal_bytes();
        let mib = *Memory::range(LimitRefused { min: 1, max }).end();
        tracing::warn!(
            "-m {}: the file of -e, or its file system, has room for only {mib} MiB, which is now the limit; \
             remove the file to start with an empty cache and the full limit",
            options.memory_limit
        );
        options.memory_limit = mib;
    }
    options
}
