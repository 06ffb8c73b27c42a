//! Settings.

use crate::core::endpoint::address::Address;
use crate::core::endpoint::handshake::Entry;
use crate::core::endpoint::login::Login;
use crate::core::endpoint::resolution::Place;
use crate::core::servers::server_set::Group;
use crate::core::servers::{Failover, Member, Servers};
use crate::discovery::{Discovery, Finder, keep};
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

/// Settings of a client of the type `C`.
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

/// In less time nothing is answered.
const TIME_MIN: Duration = Duration::from_millis(1);
/// Longer times are as good as endless, and shorter ones can be added to the present.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How often lists of servers that change are asked for.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);

/// How many connections calls share unless they are told, if there are as many cores.
const SHARED_MAX: usize = 4;

/// How calls use the connections to a server, and how many of these there are at most.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    /// Each call has one to itself.
    Pool(usize),
    Shared(usize),
}

impl Default for Transport {
    fn default() -> Self {
        Self::Shared(SHARED_MAX.min(available_parallelism().map_or(1, NonZero::get)))
    }
}

/// The settings that calls need.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) transport: Transport,
    pub(crate) idle_time_max: Duration,
    pub(crate) lifetime_max: Option<Duration>,
    pub(crate) degrades: bool,
    /// Is told of faults, if the list of servers may change.
    pub(crate) refresh: Option<Arc<RefreshSignal>>,
    /// For threads.
    pub(crate) waiter: Option<Arc<dyn Waiter>>,
}

impl Settings {
    /// When a connection that is opened now is to be closed. Those that are opened together do not end together.
    pub(crate) fn expiry(&self, now: Instant) -> Option<Instant> {
        let share = 0.8 + 0.2 * rand::random::<f64>();
        self.lifetime_max.map(|lifetime| now + lifetime.mul_f64(share))
    }

    /// When a connection that is opened now has to be open, for a call with this deadline.
    ///
    /// # Errors
    /// The time of the call is over: all of it went to others.
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
    /// A client for these servers, as `"cache:11211"`, or `["cache-1", "cache-2"]`.
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

    /// How long a call takes at most, the wait for a connection included; a millisecond at least. [Default: 1 s]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.settings.timeout = time.clamp(TIME_MIN, TIME_MAX);
        self
    }

    /// How long opening a connection takes at most, if the call has as much time left; a millisecond at least.
    /// [Default: 250 ms]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.settings.connect_timeout = time.clamp(TIME_MIN, TIME_MAX);
        self
    }

    /// Has each call take a connection of a pool to itself. `max` is how many to each server may be open together, 1 at
    /// least; further calls wait for one. [Default: calls share connections]
    pub fn connections(mut self, max: usize) -> Self {
        self.settings.transport = Transport::Pool(max.max(1));
        self
    }

    /// Has all calls share so many connections to each server, 1 to 1,024, instead of having one to themselves: the
    /// requests of several callers leave in one write, and replies come in the order of the requests. A slow answer delays
    /// those behind it. Up to 1,024 calls are under way on each connection, and further ones wait. A connection is opened
    /// when those before it are busy. Where answers may be slow, as from a server's flash, a pool of
    /// [`connections`](Self::connections) is better. [Default: as many as there are cores, 4 at most]
    pub fn shared(mut self, connections: usize) -> Self {
        self.settings.transport = Transport::Shared(connections.clamp(1, 1024));
        self
    }

    /// A connection of a pool is closed when it was idle for longer, with the next one that becomes idle.
    /// [Default: 60 s]
    pub fn idle_time(mut self, max: Duration) -> Self {
        self.settings.idle_time_max = max;
        self
    }

    /// A connection is closed after so long, up to a fifth less, however much it is used. [Default: never]
    pub fn lifetime(mut self, max: Duration) -> Self {
        self.settings.lifetime_max = Some(max.min(TIME_MAX));
        self
    }

    /// Which server a key belongs to, if there are several. [Default: `Hashing::Rendezvous`]
    pub fn hashing(mut self, hashing: Hashing) -> Self {
        self.hashing = hashing;
        self
    }

    /// What becomes of keys whose server is left alone after many faults. [Default: `Failover::Fail`]
    pub fn failover(mut self, failover: Failover) -> Self {
        self.failover = failover;
        self
    }

    /// Has the list of servers follow what `discovery` finds, instead of being what was given. The first list is awaited
    /// when the client is built, which blocks. Later ones replace it as a whole: servers that stay keep their connections,
    /// and calls that are under way go on. A list that can't be had leaves the present one as it is.
    /// [Default: the list is what was given]
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

    /// How often [`discovery`](Self::discovery) asks, ± 10 %. After a fault of a server it asks at once, but not more
    /// often than once a second. [Default: 60 s]
    pub fn discovery_interval(mut self, every: Duration) -> Self {
        self.discovery_interval = every.clamp(TIME_MIN, TIME_MAX);
        self
    }

    /// Whether a look-up finds nothing, instead of failing, if the server is at fault. [Default: no]
    pub fn degrade(mut self, degrades: bool) -> Self {
        self.settings.degrades = degrades;
        self
    }

    /// Encrypts all connections. [Default: they are not encrypted]
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Logs in on each connection before it is used, by memcached's text protocol (its option `-Y`), within the time that
    /// opening it may take. The user's name has no blanks, and memcached knows no passwords with blanks either.
    /// [Default: no login]
    ///
    /// The password is sent as it is: only TLS, or a unix socket, keeps it from whoever sees the network. Neither errors
    /// nor `Debug` show it. A refusal is [`ErrorKind::Login`]. (A server that wants no logins takes it for an item with
    /// the key `login` that has expired already, and the client works as without.)
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

    /// What connections to an address begin with. Files are read once for all.
    fn entries(&self) -> Result<impl Fn(&Address) -> Result<Entry, ErrorKind>, ErrorKind> {
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
            Ok(Entry { tls: tls.map_err(ErrorKind::connect)?, login: self.login.clone() })
        })
    }

    /// The servers: `resolve` finds the addresses of one, as far as they are to be known before it is used.
    ///
    /// # Errors
    /// An address is none, `resolve` fails, there are no servers for the hashing, a file of TLS is of no use, or the
    /// login can't be one; no list was found.
    pub(crate) fn group<S: Member + Send + Sync + 'static>(
        mut self,
        resolve: impl Fn(&Address) -> io::Result<Vec<SocketAddr>> + Send + 'static,
        server: impl Fn(&str, Place, Settings) -> S + Send + 'static,
    ) -> Result<Arc<Group<S>>, Error>
    where
        C: 'static,
    {
        let refresh = Arc::new(RefreshSignal::default());
        let Some(discovery) = self.discovery else {
            let servers = self.make(&self.servers.0, None, resolve, server)?;
            return Ok(Arc::new(Group::new(servers, refresh)));
        };
        self.settings.refresh = Some(Arc::clone(&refresh));
        let finder = self.finder(discovery)?;
        let first = finder.look().map_err(connect)?;
        let servers = self.make(&first.servers, None, &resolve, &server)?;
        let group = Arc::new(Group::new(servers, Arc::clone(&refresh)));
        let (kept, every) = ((Arc::downgrade(&group), refresh), self.discovery_interval);
        keep(finder, kept, first, every, move |listed, old| {
            self.make(listed, Some(old), &resolve, &server).ok()
        })
        .map_err(connect)?;
        Ok(group)
    }

    fn finder(&self, discovery: Discovery) -> Result<Finder, Error> {
        let entry = self.entries().map_err(Error::definite)?;
        let seed = |listed: &ListedServer| {
            let address = parse(&listed.address)?;
            let entry = entry(&address).map_err(Error::definite)?;
            Ok((listed.clone(), address, entry))
        };
        let seeds = self.servers.0.iter().map(seed).collect::<Result<_, Error>>()?;
        Ok(Finder { discovery, seeds, timeout: self.settings.connect_timeout })
    }

    /// Those that are in the old list already are kept.
    fn make<S: Member>(
        &self,
        listed: &[ListedServer],
        old: Option<&Servers<S>>,
        resolve: impl Fn(&Address) -> io::Result<Vec<SocketAddr>>,
        server: impl Fn(&str, Place, Settings) -> S,
    ) -> Result<Servers<S>, Error> {
        let (mut nodes, mut list) = (Vec::new(), Vec::new());
        let entry = self.entries().map_err(Error::definite)?;
        for ListedServer { address: name, weight } in listed {
            let address = parse(name)?;
            let resolved = resolve(&address);
            let resolved = resolved.map_err(|error| connect(error).of(&name.as_str().into()))?;
            nodes.push(node(&address, &resolved).weight(*weight));
            let old = old.and_then(|old| old.list.iter().find(|server| **server.name() == **name));
            list.push(match old {
                Some(server) => Arc::clone(server),
                None => {
                    let entry = entry(&address).map_err(Error::definite)?;
                    let place = Place::new(address, resolved).with(entry);
                    Arc::new(server(name, place, self.settings.clone()))
                }
            });
        }
        let ring = Ring::new(self.hashing, &nodes)
            .map_err(|error| connect(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        Ok(Servers::new(list, ring, self.failover))
    }

    /// Whether the addresses of servers have to be known for the hashing.
    #[cfg(feature = "tokio")]
    pub(crate) fn hashes_addresses(&self) -> bool {
        self.hashing == Hashing::Spymemcached
    }

    /// How long a call takes at most.
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

/// A server, as it is hashed.
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
