//! Settings of a client.

use crate::core::endpoint::address::Address;
use crate::core::endpoint::handshake::HandshakeConfig;
use crate::core::endpoint::login::Login;
use crate::core::endpoint::resolution::Endpoint;
use crate::core::servers::server_set::ServerSet;
use crate::core::servers::{Failover, ServerHandle, Servers};
use crate::discovery::{Discovery, ListFinder, spawn_refresh};
use crate::error::{Error, ErrorKind};
use crate::list::{ListedServer, ServerList};
use crate::refresh::RefreshSignal;
use crate::ring::{Hashing, Node, Ring};

#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::waiter::Waiter;
use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// A builder for a client of type `C`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder<C> {
    servers: ServerList,
    hashing: Hashing,
    failover: Failover,
    discovery: Option<Discovery>,
    discovery_interval: Duration,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    login: Option<Login>,
    settings: Settings,
    client: PhantomData<fn() -> C>,
}

/// The minimum timeout and discovery interval. The builder raises shorter times to this minimum.
const TIME_MIN: Duration = Duration::from_millis(1);
/// The maximum timeout, lifetime and discovery interval. The builder lowers longer times to this
/// maximum, because adding them to an `Instant` could overflow.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The default interval between refreshes of the server list.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);

/// The default number of shared connections per server. On machines with fewer cores, the default
/// is one per core.
const SHARED_MAX: usize = 4;

/// How calls use connections. The field of a variant is the maximum number of connections per
/// server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    /// Each call uses a connection of its own.
    Pool(usize),
    /// Calls share connections.
    Shared(usize),
}

impl Default for Transport {
    fn default() -> Self {
        Self::Shared(SHARED_MAX.min(available_parallelism().map_or(1, NonZero::get)))
    }
}

/// The settings that each call needs.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) transport: Transport,
    pub(crate) idle_time_max: Duration,
    pub(crate) lifetime_max: Option<Duration>,
    pub(crate) degrades: bool,
    /// Requests a refresh of the server list after a fault. `None` without discovery.
    pub(crate) refresh: Option<Arc<RefreshSignal>>,
    /// The waiter of [`blocking::Client`](crate::blocking::Client). Without a waiter, threads
    /// block.
    pub(crate) waiter: Option<Arc<dyn Waiter>>,
}

impl Settings {
    /// Returns the time at which the lifetime of a connection opened at `now` ends, or `None`
    /// without a [`lifetime`](Builder::lifetime). The end is random within the last fifth of the
    /// lifetime, so that connections that were opened together do not expire together.
    pub(crate) fn expiry(&self, now: Instant) -> Option<Instant> {
        let share = 0.8 + 0.2 * rand::random::<f64>();
        self.lifetime_max.map(|lifetime| now + lifetime.mul_f64(share))
    }

    /// Returns the deadline for opening a connection in a call with this `deadline`: the earlier of
    /// `deadline` and the end of the connect timeout.
    ///
    /// # Errors
    /// `Timeout`: the call has no time left. The breaker ignores this error.
    pub(crate) fn connect_deadline(
        &self,
        now: Instant,
        deadline: Instant,
    ) -> Result<Instant, Error> {
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Err(Error::definite(ErrorKind::Timeout).echo());
        }
        Ok(now + left.min(self.connect_timeout))
    }
}

impl<C> Builder<C> {
    /// Creates a builder for a client of these servers, such as `"cache:11211"` or
    /// `["cache-1", "cache-2"]`.
    pub fn new(servers: impl Into<ServerList>) -> Self {
        let settings = Settings {
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_millis(250),
            transport: Transport::default(),
            idle_time_max: Duration::from_secs(60),
            lifetime_max: None,
            degrades: false,
            refresh: None,
            waiter: None,
        };
        Self {
            servers: servers.into(),
            hashing: Hashing::default(),
            failover: Failover::default(),
            discovery: None,
            discovery_interval: DISCOVERY_INTERVAL,
            #[cfg(feature = "tls")]
            tls: None,
            login: None,
            settings,
            client: PhantomData,
        }
    }

    /// Sets the time limit of a call, at least 1 ms. The limit includes the wait for a connection.
    /// [Default: 1 s]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.settings.timeout = time.clamp(TIME_MIN, TIME_MAX);
        self
    }

    /// Sets the time limit for opening a connection, at least 1 ms. The time limit of the call also
    /// applies. [Default: 250 ms]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.settings.connect_timeout = time.clamp(TIME_MIN, TIME_MAX);
        self
    }

    /// Makes each call use a connection of its own from a pool. `max` is the maximum number of
    /// connections per server, at least 1. If all connections are in use, a call waits. [Default:
    /// calls share connections]
    pub fn connections(mut self, max: usize) -> Self {
        self.settings.transport = Transport::Pool(max.max(1));
        self
    }

    /// Makes all calls share up to this many connections per server, from 1 to 1,024. One write can
    /// carry the requests of several callers. Replies arrive in the order of the requests, so a
    /// slow reply delays later replies. Each connection carries up to 1,024 calls, and further
    /// calls wait. The client opens another connection when the open connections are busy. If some
    /// replies are slow, for example reads from flash, use a pool of
    /// [`connections`](Self::connections). [Default: the number of cores, at most 4]
    pub fn shared(mut self, connections: usize) -> Self {
        self.settings.transport = Transport::Shared(connections.clamp(1, 1024));
        self
    }

    /// Sets the idle time after which the pool closes a connection. Whenever a connection becomes
    /// idle, the pool checks the connection that has been idle longest. Shared connections ignore
    /// this setting. [Default: 60 s]
    pub fn idle_time(mut self, max: Duration) -> Self {
        self.settings.idle_time_max = max;
        self
    }

    /// Sets the age at which the client closes a connection instead of using it for another call.
    /// The client lowers the limit of each connection by a random amount of up to a fifth.
    /// [Default: no limit]
    pub fn lifetime(mut self, max: Duration) -> Self {
        self.settings.lifetime_max = Some(max.min(TIME_MAX));
        self
    }

    /// Sets the method that maps keys to servers. [Default: `Hashing::Rendezvous`]
    pub fn hashing(mut self, hashing: Hashing) -> Self {
        self.hashing = hashing;
        self
    }

    /// Sets the handling of keys whose server is unreachable, or unavailable after several faults
    /// in a row. [Default: `Failover::Fail`]
    pub fn failover(mut self, failover: Failover) -> Self {
        self.failover = failover;
        self
    }

    /// Refreshes the list of servers with `discovery`, which resolves or queries the configured
    /// addresses. Building the client blocks until the first list is available. Each later list
    /// replaces the previous one. Servers in both lists keep their connections, and calls under way
    /// continue. If a refresh fails, the client keeps the current list. [Default: the configured
    /// list]
    ///
    /// ```no_run
    /// use larder_client::{Discovery, blocking::Client};
    ///
    /// let cache = Client::builder("my-cluster.cfg.example:11211").discovery(Discovery::Cluster).build()?;
    /// # Ok::<(), larder_client::Error>(())
    /// ```
    pub fn discovery(mut self, discovery: Discovery) -> Self {
        self.discovery = Some(discovery);
        self
    }

    /// Sets the interval between refreshes by [`discovery`](Self::discovery). The client varies the
    /// interval randomly by ± 10 %. After a server fault, the client refreshes at once, but at most
    /// once per second. [Default: 60 s]
    pub fn discovery_interval(mut self, every: Duration) -> Self {
        self.discovery_interval = every.clamp(TIME_MIN, TIME_MAX);
        self
    }

    /// Sets whether a lookup returns no item instead of an error if the server is [at
    /// fault](Error::is_fault). Does not affect `get_or_compute`, which never reports such errors.
    /// [Default: no]
    pub fn degrade(mut self, degrades: bool) -> Self {
        self.settings.degrades = degrades;
        self
    }

    /// Encrypts all connections. [Default: no encryption]
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Logs in on each new connection, with the login of memcached's text protocol (memcached's
    /// option `-Y`). The time limit for opening the connection includes the login. A user name must
    /// not contain spaces, and memcached accepts no spaces in passwords either. [Default: no login]
    ///
    /// The password is sent in clear text, so use TLS or a unix socket on untrusted networks.
    /// Errors and `Debug` do not contain the password. If the server refuses the login, calls fail
    /// with [`ErrorKind::Login`]. A server without logins treats the request as a store of the key
    /// `login` that expires at once, and the client then works as if no login were set.
    ///
    /// ```no_run
    /// use larder_client::blocking::Client;
    ///
    /// let cache = Client::builder("cache:11211").login("ann", "secret").build()?;
    /// # Ok::<(), larder_client::Error>(())
    /// ```
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login::new(user.into(), password.into()));
        self
    }

    /// Checks the login and reads the TLS files. Returns a function that builds the handshake
    /// settings for an address.
    fn handshake_configs(
        &self,
    ) -> Result<impl Fn(&Address) -> Result<HandshakeConfig, ErrorKind>, ErrorKind> {
        self.login.as_ref().map_or(Ok(()), Login::check)?;
        #[cfg(feature = "tls")]
        let connectors = self.tls.as_ref().map(Tls::connectors).transpose();
        #[cfg(feature = "tls")]
        let connectors = connectors.map_err(ErrorKind::connect)?;
        Ok(move |address: &Address| {
            #[cfg(feature = "tls")]
            let tls = connectors.as_ref().map(|connector| connector(address)).transpose();
            #[cfg(not(feature = "tls"))]
            let (tls, _) = (Ok(None), address);
            Ok(HandshakeConfig { tls: tls.map_err(ErrorKind::connect)?, login: self.login.clone() })
        })
    }

    /// Builds the servers, and starts discovery if configured. `resolve` returns a server's socket
    /// addresses. If `resolve` returns an empty list, the first call to the server resolves the
    /// name.
    ///
    /// # Errors
    /// An address or the login is invalid, `resolve` fails, a TLS file is unusable, no server has a
    /// weight above 0, or the hashing method does not support the weights. With discovery, the
    /// function also fails if discovery finds no list, or if the discovery thread cannot be
    /// spawned.
    pub(crate) fn group<S: ServerHandle + Send + Sync + 'static>(
        mut self,
        resolve: impl Fn(&Address) -> io::Result<Vec<SocketAddr>> + Send + 'static,
        server: impl Fn(&str, Endpoint, Settings) -> S + Send + 'static,
    ) -> Result<Arc<ServerSet<S>>, Error>
    where
        C: 'static,
    {
        let refresh = Arc::new(RefreshSignal::default());
        let Some(discovery) = self.discovery else {
            let servers = self.make(&self.servers.0, None, resolve, server)?;
            return Ok(Arc::new(ServerSet::new(servers, refresh)));
        };
        self.settings.refresh = Some(Arc::clone(&refresh));
        let finder = self.finder(discovery)?;
        let first = finder.find().map_err(connect)?;
        let servers = self.make(&first.servers, None, &resolve, &server)?;
        let group = Arc::new(ServerSet::new(servers, Arc::clone(&refresh)));
        let (kept, every) = ((Arc::downgrade(&group), refresh), self.discovery_interval);
        spawn_refresh(finder, kept, first, every, move |listed, old| {
            self.make(listed, Some(old), &resolve, &server).ok()
        })
        .map_err(connect)?;
        Ok(group)
    }

    fn finder(&self, discovery: Discovery) -> Result<ListFinder, Error> {
        let handshake = self.handshake_configs().map_err(Error::definite)?;
        let seed = |listed: &ListedServer| {
            let address = parse(&listed.address)?;
            let handshake = handshake(&address).map_err(Error::definite)?;
            Ok((listed.clone(), address, handshake))
        };
        let seeds = self.servers.0.iter().map(seed).collect::<Result<_, Error>>()?;
        Ok(ListFinder { discovery, seeds, timeout: self.settings.connect_timeout })
    }

    /// Builds the servers of a list. Reuses a server whose address is also in the old list,
    /// together with its connections.
    fn make<S: ServerHandle>(
        &self,
        listed: &[ListedServer],
        old: Option<&Servers<S>>,
        resolve: impl Fn(&Address) -> io::Result<Vec<SocketAddr>>,
        server: impl Fn(&str, Endpoint, Settings) -> S,
    ) -> Result<Servers<S>, Error> {
        let (mut nodes, mut list) = (Vec::new(), Vec::new());
        let handshake = self.handshake_configs().map_err(Error::definite)?;
        for ListedServer { address: name, weight } in listed {
            let address = parse(name)?;
            let resolved = resolve(&address);
            let resolved = resolved.map_err(|error| connect(error).of(&name.as_str().into()))?;
            nodes.push(node(&address, &resolved).weight(*weight));
            let old = old.and_then(|old| old.list.iter().find(|server| **server.name() == **name));
            list.push(match old {
                Some(server) => Arc::clone(server),
                None => {
                    let handshake = handshake(&address).map_err(Error::definite)?;
                    let endpoint = Endpoint::new(address, resolved).with_handshake(handshake);
                    Arc::new(server(name, endpoint, self.settings.clone()))
                }
            });
        }
        let ring = Ring::new(self.hashing, &nodes)
            .map_err(|error| connect(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        Ok(Servers::new(list, ring, self.failover))
    }

    /// Returns whether the hashing method needs the IP addresses of the servers.
    #[cfg(feature = "tokio")]
    pub(crate) fn hashes_addresses(&self) -> bool {
        self.hashing == Hashing::Spymemcached
    }

    /// Returns the time limit of a call.
    pub(crate) fn time_max(&self) -> Duration {
        self.settings.timeout
    }

    pub(crate) fn set_waiter(&mut self, waiter: Arc<dyn Waiter>) {
        self.settings.waiter = Some(waiter);
    }

    pub(crate) fn waiter_set(&self) -> Option<Arc<dyn Waiter>> {
        self.settings.waiter.clone()
    }
}

fn connect(error: io::Error) -> Error {
    Error::definite(ErrorKind::Connect(Arc::new(error)))
}

fn parse(name: &str) -> Result<Address, Error> {
    name.parse().map_err(|error| connect(io::Error::new(io::ErrorKind::InvalidInput, error)))
}

/// Returns the ring node of a server. If the host is a name, the node includes the first IPv4
/// address of the name.
fn node(address: &Address, resolved: &[SocketAddr]) -> Node {
    match address {
        Address::Unix(path) => Node::unix(path.to_string_lossy()),
        Address::Host(host, port) => {
            let node = Node::new(host.as_str(), *port);
            let is_number = host.parse::<IpAddr>().is_ok();
            let ip = resolved.iter().map(SocketAddr::ip).find(|ip| ip.is_ipv4() && !is_number);
            ip.map_or(node.clone(), |ip| node.ip(ip))
        }
    }
}
