//! What all threads of a server share.

use crate::auth::{PasswordFile, TokenFile};
use crate::connection::holdings::Shedding;
use crate::connection::list::Connections;
use crate::controls::Controls;
use crate::log::Log;
use crate::log::verbosity::Verbosity;
use crate::memory::Memory;
use crate::memory::memory_file::Start;
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
use larder_store::{FlashGauges, FlashPage, Gauges, LimitRefused};
use larder_support::clock::Clock;
use larder_support::rate_limited::RateLimitedWarning;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The shared part of a server.
pub struct Server {
    /// The command line.
    pub options: Options,
    /// What sessions share.
    pub settings: Settings,
    /// Logins and TLS of clients.
    pub(crate) guards: ClientGuards,
    /// The clock.
    pub clock: Clock,
    /// How it began.
    pub start: Start,
    /// The open connections, and counts of them.
    pub connections: Connections,
    /// Counts of HTTP and gRPC.
    #[cfg(feature = "metrics")]
    pub(crate) web: larder_gateway::WebCounts,
    /// The counters of each worker, and of the gateway if it has items.
    pub counters: Vec<Arc<Counters>>,
    /// Addresses that are listened on, in memcached's form.
    pub listeners: Mutex<Vec<String>>,
    /// The phases of its life.
    pub life: LifeCycle,
    /// Whether connections are accepted.
    pub gate: Gate,
    /// The log that watchers read.
    pub log: Arc<Log>,
    /// Counts by prefix.
    pub prefixes: Prefixes,
    /// Settings that operators have changed.
    pub controls: Controls,
    /// When each worker was last seen alive, as [`Clock::now`].
    last_seen: Vec<AtomicU32>,
    /// This server among other nodes.
    pub node: Arc<Node>,
    pub(crate) verbosity: Verbosity,
    pub(crate) cache: erased::Cache,
    /// Connections that are to be closed because memory is short.
    pub(crate) shedding: Shedding,
    pub(crate) warnings: Warnings,
}

/// Rate-limited warnings, which clients could cause many times a second.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// Stalled connections were closed because memory is short.
    pub(crate) shed: RateLimitedWarning,
    /// Connections wait because the system has no more file descriptors.
    pub(crate) accept: RateLimitedWarning,
    /// Connections were closed because memory is short.
    pub(crate) refused: RateLimitedWarning,
}

/// Credentials that are asked of clients and of other nodes.
#[derive(Default)]
pub struct Guards {
    /// Those of clients.
    pub clients: ClientGuards,
    /// Those of other nodes.
    pub nodes: Credentials,
}

/// Logins and TLS of clients.
#[derive(Default)]
pub struct ClientGuards {
    /// The passwords, which are read again at SIGHUP; `None` if no login is required.
    pub passwords: Option<PasswordFile>,
    /// The tokens with which clients of HTTP may log in instead, which are read again, too.
    pub tokens: Option<TokenFile>,
    /// Certificates, under `-Z`.
    pub tls: Option<Arc<Tls>>,
}

impl Server {
    /// A server for `cache`.
    #[must_use]
    pub fn new(
        options: Options,
        settings: Settings,
        Guards { clients, nodes }: Guards,
        cache: erased::Cache,
        life: LifeCycle,
        verbosity: Verbosity,
        start: Start,
    ) -> Self {
        let classes = settings.limits.classes.count();
        let handles = options.handles() + options.answerers();
        let counters: Vec<_> = (0..handles).map(|_| Arc::new(Counters::new(classes))).collect();
        let clock = start.clock;
        let node = node::config(&options, &settings, nodes, clock, &cache, &counters);
        let log = Arc::new(Log::new(
            clock,
            settings.limits.classes.clone(),
            options.suboptions.watcher_logbuf_size,
        ));
        let evictions = Arc::clone(&log);
        cache
            .control()
            .observe_evictions(Box::new(move |evicted| evictions.note_eviction(evicted)));
        log.set_prefixes(options.prefix_delimiter.is_some());
        Self {
            log,
            prefixes: Prefixes::new(settings.limits.prefix_delimiter),
            verbosity,
            settings,
            guards: clients,
            clock,
            start,
            connections: Connections::default(),
            #[cfg(feature = "metrics")]
            web: larder_gateway::WebCounts::default(),
            counters,
            listeners: Mutex::default(),
            life,
            node: Arc::new(Node::new(node)),
            gate: Gate::default(),
            controls: Controls::new(&options, cache.control().flash_settings()),
            last_seen: (0..options.threads).map(|_| clock.now().0.into()).collect(),
            cache,
            shedding: Shedding::default(),
            warnings: Warnings::default(),
            options,
        }
    }

    /// TLS of clients, under `-Z`.
    #[must_use]
    pub fn client_tls(&self) -> Option<&Arc<Tls>> {
        self.guards.tls.as_ref()
    }

    /// Whether clients have to log in.
    #[must_use]
    pub fn asks_for_logins(&self) -> bool {
        self.guards.passwords.is_some()
    }

    /// Reads the passwords and certificates again (SIGHUP). An invalid file changes nothing.
    pub(crate) fn reload(&self) {
        if let Some(passwords) = &self.guards.passwords {
            passwords.reload();
        }
        if let Some(tokens) = &self.guards.tokens {
            tokens.reload();
        }
        if let Some(Err(error)) = self.refresh_certificates() {
            tracing::warn!(
                "the certificates were not read again, and those from before stay: {error}"
            );
        }
    }

    /// Reads all certificates again; `None` if there are none. An invalid file changes nothing of those that it
    /// belongs to.
    pub(crate) fn refresh_certificates(&self) -> Option<Result<(), LoadError>> {
        let of_clients = self.guards.tls.as_ref().map(|tls| tls.refresh());
        let of_nodes = self.node.credentials.tls.as_ref().map(|tls| tls.refresh());
        match (of_clients, of_nodes) {
            (Some(of_clients), Some(of_nodes)) => Some(of_clients.and(of_nodes)),
            (of_clients, of_nodes) => of_clients.or(of_nodes),
        }
    }

    /// Notes that a worker is alive.
    pub(crate) fn heartbeat(&self, worker: usize) {
        if worker == 0 && self.start.restart.is_some() {
            self.note_refused_memory();
        }
        if let Some(seen) = self.last_seen.get(worker) {
            seen.store(self.clock.now().0, Relaxed);
        }
    }

    /// Notes that the file system has refused memory, and that the limit is lower than it was set.
    fn note_refused_memory(&self) {
        let max = usize::try_from(self.gauges().limit_bytes).unwrap_or(usize::MAX);
        let limit = self.controls.limit_mib.load(Relaxed);
        let journals = self.options.journal_bytes();
        if max < Memory::new(limit).items - journals {
            let max = max + journals;
            let lower = *Memory::range(LimitRefused { min: 1, max }).end();
            self.controls.limit_mib.store(lower, Relaxed);
            tracing::warn!(
                "the file system of -e has no room for {limit} MiB: the limit is {lower} MiB now"
            );
        }
    }

    /// The longest time for which a worker has not been seen alive.
    pub(crate) fn stall_time(&self) -> Duration {
        let seen = self.last_seen.iter().map(|seen| seen.load(Relaxed)).min();
        let now = self.clock.now().0;
        Duration::from_secs(now.saturating_sub(seen.unwrap_or(now)).into())
    }

    /// The memory limit and its parts, as they are now.
    pub(crate) fn memory(&self) -> Memory {
        let memory = Memory::new(self.controls.limit_mib.load(Relaxed));
        let memory = Memory { items: memory.items - self.options.journal_bytes(), ..memory };
        match self.options.suboptions.read_buf_mem_limit {
            0 => memory,
            limit => Memory { connections: limit.min(memory.connections), ..memory },
        }
    }

    /// The operations on the cache as a whole.
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
        if let Some(tls) = &self.guards.tls {
            tls.counts().reset();
        }
    }
}
