//! The state that all threads of a server share.

use crate::auth::{PasswordFile, TokenFile};
use crate::connection::connection_memory::Shedding;
use crate::connection::list::Connections;
use crate::controls::Controls;
use crate::log::Log;
use crate::log::verbosity::Verbosity;
use crate::memory::Memory;
use crate::memory::memory_file::StartState;
use crate::memory::storage_watch::{StorageCounts, StorageWatch};
use crate::net::gate::Gate;
use crate::node;
use crate::options::Options;
use crate::prefixes::Prefixes;
use crate::process::life_cycle::LifeCycle;
use crate::tls::{LoadError, Tls};
use larder_cluster::{Credentials, Node};
use larder_operations::Counters;
use larder_session::Settings;
use larder_store::cache::{Cache, CacheControl};
use larder_store::erased;
use larder_store::segment::MissRatioCurve;
use larder_store::{Expiry, FlashGauges, FlashPage, Gauges, LimitRefused};
use larder_support::clock::Clock;
use larder_support::rate_limited::RateLimitedWarning;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The shared state of a server.
pub struct Server {
    /// The options at the start. [`Self::controls`] contains the settings that commands change.
    pub options: Options,
    /// The settings of sessions.
    pub settings: Settings,
    /// Logins and TLS for clients.
    pub(crate) access: ClientAccessControl,
    /// The server's clock.
    pub clock: Clock,
    /// The clock and the result of the restart from a memory file or an image.
    pub start: StartState,
    /// The open connections and their counts.
    pub connections: Connections,
    /// Counts of HTTP and gRPC.
    #[cfg(feature = "metrics")]
    pub(crate) web: larder_gateway::WebCounts,
    /// The counters of each worker, then those of the gateway if it serves items, then those of
    /// each cache handle that answers forwarded requests.
    pub counters: Vec<Arc<Counters>>,
    /// The addresses of listeners, in memcached's format.
    pub listeners: Mutex<Vec<String>>,
    /// The phase of the server and requests to change it.
    pub life: LifeCycle,
    /// The gate, which pauses accepting while the limit of `-c` is reached or the system lacks
    /// resources for a connection.
    pub gate: Gate,
    /// The log that watchers read.
    pub log: Arc<Log>,
    /// Request counts by prefix.
    pub prefixes: Prefixes,
    /// Settings that commands change.
    pub controls: Controls,
    /// The time of each worker's last heartbeat, on the scale of [`Clock::now`].
    last_seen: Vec<AtomicU32>,
    /// The node: this server's part in replication and in a cluster.
    pub node: Arc<Node>,
    pub(crate) verbosity: Verbosity,
    pub(crate) cache: erased::Cache,
    /// The connections that load shedding has marked.
    pub(crate) shedding: Shedding,
    pub(crate) warnings: Warnings,
}

/// Rate-limited warnings, which clients could otherwise cause many times a second.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// Logged when load shedding marks connections for closing.
    pub(crate) shed: RateLimitedWarning,
    /// Logged when accepting has failed, for example because the system has no free file
    /// descriptors, so that connections must wait.
    pub(crate) accept: RateLimitedWarning,
    /// Logged when a connection was closed because the buffers of all connections had reached their
    /// limit.
    pub(crate) refused: RateLimitedWarning,
    /// Logged when the engine has refused changes, or when flash fails.
    pub(crate) storage: StorageWatch,
}

/// The credentials that clients and other nodes must present.
#[derive(Default)]
pub struct AccessControl {
    /// Logins and TLS for clients.
    pub clients: ClientAccessControl,
    /// The secret and certificates of nodes.
    pub nodes: Credentials,
}

/// Logins and TLS for clients.
#[derive(Default)]
pub struct ClientAccessControl {
    /// The password file, reloaded at SIGHUP; `None` with neither `-Y` nor `-S`.
    pub passwords: Option<PasswordFile>,
    /// The token file for HTTP and gRPC clients, reloaded at SIGHUP; `None` without `--token-file`.
    pub tokens: Option<TokenFile>,
    /// The certificates of `-Z`; `None` without `-Z`.
    pub tls: Option<Arc<Tls>>,
}

impl Server {
    /// Creates the server of `cache`.
    #[must_use]
    pub fn new(
        options: Options,
        settings: Settings,
        AccessControl { clients, nodes }: AccessControl,
        cache: erased::Cache,
        life: LifeCycle,
        verbosity: Verbosity,
        start: StartState,
    ) -> Self {
        let classes = settings.limits.classes.count();
        let handles = options.handles() + options.answerers();
        let counters: Vec<_> = (0..handles).map(|_| Arc::new(Counters::new(classes))).collect();
        let clock = start.clock.clone();
        let log = Arc::new(Log::new(
            clock.clone(),
            settings.limits.classes.clone(),
            options.suboptions.watcher_logbuf_size,
        ));
        let evictions = Arc::clone(&log);
        let connections = Connections::new(Memory::new(options.memory_limit).connections);
        let tracker = Arc::clone(&connections.tracker);
        let node =
            node::config(&options, &settings, nodes, clock.clone(), &cache, &counters, &tracker);
        #[cfg(feature = "delayed")]
        let keys = crate::log::evicted_keys::EvictedKeys::from_environment();
        cache.control().observe_evictions(Box::new(move |evicted| {
            #[cfg(feature = "delayed")]
            keys.note(evicted);
            evictions.note_eviction(evicted);
            // The engine does not report the removal of an item that expires on flash, so the
            // tracker could not notify clients that cache the item. For this reason, the tracker
            // treats writing an item with an expiry to flash as an eviction.
            if evicted.flash_bucket.is_none() || evicted.attributes.expiry != Expiry::Never {
                tracker.note_eviction(evicted.key);
            }
        }));
        log.set_prefixes(options.prefix_delimiter.is_some());
        Self {
            log,
            prefixes: Prefixes::new(settings.limits.prefix_delimiter),
            verbosity,
            settings,
            access: clients,
            last_seen: (0..options.threads).map(|_| clock.now().0.into()).collect(),
            clock,
            start,
            connections,
            #[cfg(feature = "metrics")]
            web: larder_gateway::WebCounts::default(),
            counters,
            listeners: Mutex::default(),
            life,
            node: Arc::new(Node::new(node)),
            gate: Gate::default(),
            controls: Controls::new(&options, cache.control().flash_settings()),
            cache,
            shedding: Shedding::default(),
            warnings: Warnings::default(),
            options,
        }
    }

    /// Returns the TLS state for clients, or `None` without `-Z`.
    #[must_use]
    pub fn client_tls(&self) -> Option<&Arc<Tls>> {
        self.access.tls.as_ref()
    }

    /// Returns whether clients of memcached's protocols and of RESP must log in. With
    /// `--token-file` alone, only clients of HTTP and gRPC must log in.
    #[must_use]
    pub fn requires_login(&self) -> bool {
        self.access.passwords.is_some()
    }

    /// Reloads passwords, tokens and certificates (SIGHUP). Each of the three stays unchanged if
    /// one of its files is invalid.
    pub(crate) fn reload(&self) {
        if let Some(passwords) = &self.access.passwords {
            passwords.reload();
        }
        if let Some(tokens) = &self.access.tokens {
            tokens.reload();
        }
        if let Some(Err(error)) = self.refresh_certificates() {
            tracing::warn!(
                "reloading the certificates failed: {error}; the previous certificates stay in use until the \
                 files are fixed and SIGHUP is sent"
            );
        }
    }

    /// Reloads the certificates for clients and for nodes. Returns `None` if the server has no
    /// certificates. The two sets of certificates are independent: a set with an invalid file stays
    /// unchanged.
    pub(crate) fn refresh_certificates(&self) -> Option<Result<(), LoadError>> {
        let of_clients = self.access.tls.as_ref().map(|tls| tls.refresh());
        let of_nodes = self.node.credentials.tls.as_ref().map(|tls| tls.refresh());
        match (of_clients, of_nodes) {
            (Some(of_clients), Some(of_nodes)) => Some(of_clients.and(of_nodes)),
            (of_clients, of_nodes) => of_clients.or(of_nodes),
        }
    }

    /// Records that a worker is alive. Worker 0 also checks the storage, for the log.
    pub(crate) fn heartbeat(&self, worker: usize) {
        if worker == 0 {
            self.check_storage();
        }
        if let Some(seen) = self.last_seen.get(worker) {
            seen.store(self.clock.now().0, Relaxed);
        }
    }

    /// Logs refused changes and flash failures, and lowers the memory limit if the memory file
    /// cannot grow up to it.
    fn check_storage(&self) {
        if self.start.restart.is_some() {
            self.note_refused_memory();
        }
        let refused = self.counters.iter().map(|counters| counters.thread.store_no_memory.get());
        self.warnings.storage.check(&StorageCounts {
            refused: refused.sum(),
            evicts: !self.options.disable_evictions,
            flash: self.flash_gauges(),
        });
    }

    /// Lowers the memory limit if the memory file (`-e`) cannot grow up to it, because its file
    /// system is full.
    fn note_refused_memory(&self) {
        let max = usize::try_from(self.gauges().limit_bytes).unwrap_or(usize::MAX);
        let limit = self.controls.limit_mib.load(Relaxed);
        let journals = self.options.journal_bytes();
        if max < Memory::new(limit).items - journals {
            let max = max + journals;
            let lower = *Memory::range(LimitRefused { min: 1, max }).end();
            self.controls.limit_mib.store(lower, Relaxed);
            tracing::warn!(
                "memory limit lowered from {limit} to {lower} MiB: the file system of -e is full; enlarge it, \
                 then set the limit again (cache_memlimit)"
            );
        }
    }

    /// Returns the time since the oldest of the workers' last heartbeats.
    pub(crate) fn stall_time(&self) -> Duration {
        let seen = self.last_seen.iter().map(|seen| seen.load(Relaxed)).min();
        let now = self.clock.now().0;
        Duration::from_secs(now.saturating_sub(seen.unwrap_or(now)).into())
    }

    /// Returns the current memory limit and its parts.
    pub(crate) fn memory(&self) -> Memory {
        let memory = Memory::new(self.controls.limit_mib.load(Relaxed));
        let memory = Memory { items: memory.items - self.options.journal_bytes(), ..memory };
        match self.options.suboptions.read_buf_mem_limit {
            0 => memory,
            limit => Memory { connections: limit.min(memory.connections), ..memory },
        }
    }

    /// Returns the interface for operations on the entire cache.
    pub(crate) fn control(&self) -> &dyn CacheControl {
        self.cache.control()
    }

    pub(crate) fn gauges(&self) -> Gauges {
        self.control().gauges()
    }

    pub(crate) fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        self.control().miss_ratio_curve()
    }

    pub(crate) fn flash_gauges(&self) -> Option<FlashGauges> {
        self.control().flash_gauges()
    }

    pub(crate) fn flash_pages(&self) -> Vec<FlashPage> {
        self.control().flash_pages()
    }

    pub(crate) fn verbosity(&self) -> u32 {
        self.verbosity.level()
    }

    pub(crate) fn reset(&self) {
        self.control().reset_counters();
        self.prefixes.reset();
        self.counters.iter().for_each(|counters| counters.reset());
        self.connections.reset();
        self.reset_shed_count();
        self.gate.reset();
        if let Some(tls) = &self.access.tls {
            tls.counts().reset();
        }
    }
}
