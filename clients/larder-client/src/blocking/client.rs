//! The blocking client.

use super::connect::resolve;
use super::server::Server;
use super::wait::Wait;
use crate::builder::Builder;
use crate::calls::calls;
use crate::computing::{ComputeStep, Computing, computing};
use crate::core::flight::{ComputePermit, FlightResult, FlightWaiter, JoinRole};
use crate::core::key::Key;
use crate::core::lease::{
    Lease, LeaseAnswer, LeaseGet, LeaseStep, StoreCondition, ends_call, pause,
};
use crate::core::operation::batch::Batch;
use crate::core::operation::{
    Count, Delete, Flush, Get, GetMany, MetaProbe, Operation, Stats, Store, Touch, Version,
};
use crate::core::servers::server_set::ServerSet;
use crate::core::servers::{Rounds, ServerHandle, all, checked};
use crate::error::{ComputeError, Error};
use crate::item::{CountOutcome, Item, PerServer, StoreOutcome, StoreRequest, Ttl, new_item};
use crate::list::ServerList;
use crate::metrics::Metrics;
use crate::waiter::Waiter;
use bytes::Bytes;
use larder_protocol::encode::{NewItem, WireKey};
use larder_protocol::{Exptime, StoreMode};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A client for any number of threads. Clones share its connections.
///
/// A key has 1 to 250 bytes. The client sends a key with spaces or control characters in base64.
/// Such a key has at most 186 bytes, and needs a server with meta commands (memcached 1.6 or
/// later).
///
/// A call fails if its key or value is invalid, its server is unreachable, several faults in a row
/// have made the server unavailable, its deadline passes, or its connection fails. It also fails if
/// the server refuses the login or the request, sends an unexpected reply or reports an error, if a
/// waiter interrupts the call, or if the client is closed. [`ErrorKind`](crate::ErrorKind) lists
/// all kinds of errors.
#[derive(Clone, Debug)]
pub struct Client {
    group: Arc<ServerSet<Server>>,
    computing: Computing,
    wait: Wait,
}

impl Builder<Client> {
    /// Sets the waiter, which replaces the blocking waits of calls. [Default: threads block]
    pub fn waiter(mut self, waiter: Arc<dyn Waiter>) -> Self {
        self.set_waiter(waiter);
        self
    }

    /// Builds the client. Calls open connections on demand. This function blocks while it resolves
    /// names. With [`discovery`](Builder::discovery), the function also blocks until the first list
    /// of servers is available.
    ///
    /// # Errors
    /// An address or the login is invalid, a name cannot be resolved, a TLS file is unusable, no
    /// server has a weight above 0, or the hashing method does not support the weights. With
    /// discovery, the function also fails if discovery finds no list, or if the discovery thread
    /// cannot be spawned.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client {
            computing: Computing::new(self.time_max()),
            wait: Wait(self.waiter_set()),
            group: self.group(resolve, Server::new)?,
        })
    }
}

impl Client {
    /// Creates a client for these servers with default settings.
    ///
    /// # Errors
    /// An address is invalid, a name cannot be resolved, or no server has a weight above 0.
    pub fn connect(servers: impl Into<ServerList>) -> Result<Self, Error> {
        Self::builder(servers).build()
    }

    /// Returns a builder for a client of these servers.
    pub fn builder(servers: impl Into<ServerList>) -> Builder<Self> {
        Builder::new(servers)
    }

    calls!([] []);
    computing!([] [] [F: FnOnce() -> Result<V, E>]);

    fn pause(&self, time: Duration) -> Result<(), Error> {
        self.wait.park(time, || false).map_err(Error::definite)
    }

    fn wait_for_flight(&self, waiting: FlightWaiter) -> Result<FlightResult, Error> {
        const LOOK_PAUSE: Duration = Duration::from_secs(1);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (mut waiting, mut context) = (pin!(waiting), Context::from_waker(&waker));
        loop {
            if let Poll::Ready(result) = waiting.as_mut().poll(&mut context) {
                return Ok(result);
            }
            self.wait.park(LOOK_PAUSE, || waiting.is_over()).map_err(Error::definite)?;
        }
    }

    fn each<O: Operation>(&self, operation: impl Fn() -> O) -> Result<PerServer<O::Output>, Error> {
        let servers = self.group.servers();
        let list = &servers.list;
        let outputs = all(
            call_servers(list.iter().map(|server| (&**server, operation())), Instant::now()),
            operation().reads(),
        )?;
        Ok(list.iter().map(|server| Arc::clone(server.name())).zip(outputs).collect())
    }

    /// Returns the items of several keys, each item with its CAS. If a server is [at
    /// fault](Error::is_fault), the items of its keys are `None`.
    ///
    /// # Errors
    /// See [`Client`]. Server faults are not reported.
    pub fn gets_available<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Item>>, Error> {
        self.many_unless(keys, true, Error::is_fault)
    }

    fn many<K: AsRef<[u8]>>(&self, keys: &[K], cas: bool) -> Result<Vec<Option<Item>>, Error> {
        self.many_unless(keys, cas, |_| false)
    }

    /// Returns the items of several keys. If `is_ignored` returns true for a server's error, the
    /// items of that server's keys are `None`.
    fn many_unless<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        cas: bool,
        is_ignored: impl Fn(&Error) -> bool,
    ) -> Result<Vec<Option<Item>>, Error> {
        let (servers, now, checked) = (self.group.servers(), Instant::now(), checked(keys)?);
        let mut found = vec![None; keys.len()];
        let mut rounds = Rounds::new(&servers, checked, now);
        loop {
            let parts = rounds.parts();
            if parts.is_empty() {
                return Ok(found);
            }
            let called = parts.iter().map(|part| (part.server, GetMany::new(&part.keys, cas)));
            let errors = rounds.settle(&parts, call_servers(called, now), |part, items| {
                part.put(items, &mut found)
            });
            if let Some(error) = errors.into_iter().find(|error| !is_ignored(error)) {
                return Err(error);
            }
        }
    }

    /// Stores items, with one batch of requests per server. Returns the outcomes in the order of
    /// the requests.
    ///
    /// # Errors
    /// See [`Client`]. Some of the items may have been stored.
    pub fn store_many(&self, requests: &[StoreRequest<'_>]) -> Result<Vec<StoreOutcome>, Error> {
        self.batch(requests.iter().map(|one| {
            let store = Store::new(one.mode, one.key, one.item(), one.cas)?;
            Ok((store.key, store))
        }))
    }

    /// Removes items, with one batch of requests per server. Returns for each key whether the item
    /// existed.
    ///
    /// # Errors
    /// See [`Client`]. Some of the items may have been removed.
    pub fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>, Error> {
        self.batch(keys.iter().map(|key| {
            let key = Key::new(key.as_ref())?;
            Ok((key, Delete { key, compare: None, stale: None }))
        }))
    }

    /// Carries out operations on keys, with one batch per server. Returns the outputs in the order
    /// of the operations.
    fn batch<'k, O: Operation + Clone>(
        &self,
        operations: impl Iterator<Item = Result<(Key<'k>, O), Error>>,
    ) -> Result<Vec<O::Output>, Error> {
        let operations = operations.collect::<Result<Vec<_>, Error>>()?;
        let (keys, operations): (Vec<_>, Vec<_>) = operations.into_iter().unzip();
        let mut outputs: Vec<_> = operations.iter().map(|_| None).collect();
        let (servers, now, mut has_changed) = (self.group.servers(), Instant::now(), false);
        let mut rounds = Rounds::new(&servers, keys, now);
        loop {
            let parts = rounds.parts();
            if parts.is_empty() {
                return Ok(outputs.into_iter().flatten().collect());
            }
            let batches =
                parts.iter().map(|part| (part.server, Batch::new(part.pick(&operations))));
            let errors = rounds.settle(&parts, call_servers(batches, now), |part, done| {
                has_changed = true;
                part.put(done.into_iter().map(Some), &mut outputs);
            });
            has_changed |= errors.iter().any(Error::is_ambiguous);
            if let Some(error) = errors.into_iter().next() {
                return Err(if has_changed { error.ambiguous() } else { error });
            }
        }
    }

    /// Closes idle connections at once, and each busy connection when its calls have ended. Later
    /// calls fail, including calls on clones.
    pub fn close(&self) {
        self.group.close();
    }

    /// Returns a snapshot of the client's metrics: latencies, errors, connections, breakers. Takes
    /// a few microseconds per server.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.group.metrics()
    }

    /// Returns the numbers of open connections, idle connections, and threads that wait for a
    /// connection. With a pool, the first number includes connections that are being opened. With
    /// shared connections, the third number is always 0.
    #[must_use]
    pub fn connections(&self) -> (usize, usize, usize) {
        self.group.connections()
    }
}

/// A waker that unparks the thread waiting for a computation.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Carries out an operation on each server, within the time limit of a call. Starts all operations
/// before it waits for the first reply: opens connections if necessary, and sends as much as the
/// sockets accept. Acquires connections in the order of the server list, so that concurrent calls
/// cannot deadlock.
fn call_servers<'s, O: Operation>(
    operations: impl Iterator<Item = (&'s Server, O)>,
    now: Instant,
) -> Vec<Result<O::Output, Error>> {
    let started: Vec<_> = operations
        .map(|(server, mut operation)| {
            let started = server.start(&mut operation, now);
            (server, operation, started)
        })
        .collect();
    let finish = |(server, mut operation, started): (&'s Server, O, _)| {
        server.finish(started, &mut operation)
    };
    started.into_iter().map(finish).collect()
}
