//! The client for threads.

use super::connect::resolve;
use super::server::Server;
use super::wait::Wait;
use crate::builder::Builder;
use crate::calls::calls;
use crate::computing::{Computing, Obtained, computing};
use crate::core::flight::{Joined, Landed, Turn, Waiting};
use crate::core::key::Key;
use crate::core::lease::{Found, Lease, Look, Right, Seen, ends_call, pause};
use crate::core::operation::batch::Batch;
use crate::core::operation::{
    Count, Delete, Flush, Get, GetMany, KnowsMeta, Operation, Stats, Store, Touch, Version,
};
use crate::core::servers::server_set::Group;
use crate::core::servers::{Member, all};
use crate::error::{ComputeError, Error};
use crate::item::{Counted, Item, PerServer, StoreRequest, Stored, Ttl, new_item};
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
/// Keys have 1 to 250 bytes. Those with blanks or control characters are sent in base64, which needs a server that
/// knows meta commands (memcached 1.6 or later), and have 186 bytes at most.
///
/// The errors of all calls are: the server can't be reached or is left alone for a moment after many faults, the
/// deadline is over, the connection failed, the server refused the request or failed ([`ErrorKind`]).
#[derive(Clone, Debug)]
pub struct Client {
    group: Arc<Group<Server>>,
    computing: Computing,
    wait: Wait,
}

impl Builder<Client> {
    /// What threads do while they wait. [Default: they block]
    pub fn waiter(mut self, waiter: Arc<dyn Waiter>) -> Self {
        self.set_waiter(waiter);
        self
    }

    /// The client. Connections are opened when they are needed.
    ///
    /// # Errors
    /// An address is none, its name is unknown, or the hashing has no use for the weights.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client {
            computing: Computing::new(self.time_max()),
            wait: Wait(self.waiter_set()),
            group: self.group(resolve, Server::new)?,
        })
    }
}

impl Client {
    /// A client of these servers with default settings.
    ///
    /// # Errors
    /// The address is none, or its name is unknown.
    pub fn connect(servers: impl Into<ServerList>) -> Result<Self, Error> {
        Self::builder(servers).build()
    }

    /// Settings of a client of these servers.
    pub fn builder(servers: impl Into<ServerList>) -> Builder<Self> {
        Builder::new(servers)
    }

    calls!([] []);
    computing!([] [] [F: FnOnce() -> Result<V, E>]);

    fn pause(&self, time: Duration) -> Result<(), Error> {
        self.wait.park(time, || false).map_err(Error::definite)
    }

    fn landing(&self, waiting: Waiting) -> Result<Landed, Error> {
        const LOOK_PAUSE: Duration = Duration::from_secs(1);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (mut waiting, mut context) = (pin!(waiting), Context::from_waker(&waker));
        loop {
            if let Poll::Ready(landed) = waiting.as_mut().poll(&mut context) {
                return Ok(landed);
            }
            self.wait.park(LOOK_PAUSE, || waiting.is_over()).map_err(Error::definite)?;
        }
    }

    fn each<O: Operation>(&self, operation: impl Fn() -> O) -> Result<PerServer<O::Output>, Error> {
        let servers = self.group.servers();
        let list = &servers.list;
        let outputs =
            all(ask(list.iter().map(|server| (&**server, operation()))), operation().reads())?;
        Ok(list.iter().map(|server| Arc::clone(server.name())).zip(outputs).collect())
    }

    /// The items of several keys with their CAS, as far as their servers answer: keys of a server that is at fault are as
    /// if they were not there.
    ///
    /// # Errors
    /// See [`Client`], but for faults of servers.
    pub fn gets_available<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Item>>, Error> {
        self.many_unless(keys, true, Error::is_fault)
    }

    fn many<K: AsRef<[u8]>>(&self, keys: &[K], cas: bool) -> Result<Vec<Option<Item>>, Error> {
        self.many_unless(keys, cas, |_| false)
    }

    /// Errors of a server that are to be ignored leave its keys without items.
    fn many_unless<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        cas: bool,
        is_ignored: impl Fn(&Error) -> bool,
    ) -> Result<Vec<Option<Item>>, Error> {
        let keys: Result<Vec<Key<'_>>, _> = keys.iter().map(|key| Key::new(key.as_ref())).collect();
        let keys = keys?;
        let mut found = vec![None; keys.len()];
        let servers = self.group.servers();
        let parts = servers.parts(&keys, Instant::now());
        let asked = ask(parts.iter().map(|part| (part.server, GetMany::new(&part.keys, cas))));
        for (part, items) in parts.iter().zip(asked) {
            match items {
                Ok(items) => part.put(items, &mut found),
                Err(error) if is_ignored(&error) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Stores items, in one write to each server: the outcome of each, in their order.
    ///
    /// # Errors
    /// See [`Client`]. Some of the items may be stored.
    pub fn store_many(&self, requests: &[StoreRequest<'_>]) -> Result<Vec<Stored>, Error> {
        self.batch(requests.iter().map(|one| {
            let store = Store::new(one.mode, one.key, one.item(), one.cas)?;
            Ok((store.key, store))
        }))
    }

    /// Removes items, in one write to each server: whether there was one, for each key.
    ///
    /// # Errors
    /// See [`Client`]. Some of the items may be removed.
    pub fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>, Error> {
        self.batch(keys.iter().map(|key| {
            let key = Key::new(key.as_ref())?;
            Ok((key, Delete { key, compare: None, stale: None }))
        }))
    }

    /// Does operations on keys: the output of each, in their order.
    fn batch<'k, O: Operation + Clone>(
        &self,
        operations: impl Iterator<Item = Result<(Key<'k>, O), Error>>,
    ) -> Result<Vec<O::Output>, Error> {
        let operations = operations.collect::<Result<Vec<_>, Error>>()?;
        let (keys, operations): (Vec<_>, Vec<_>) = operations.into_iter().unzip();
        let servers = self.group.servers();
        let parts = servers.parts(&keys, Instant::now());
        let batches = parts.iter().map(|part| (part.server, Batch::new(part.pick(&operations))));
        let mut outputs: Vec<_> = operations.iter().map(|_| None).collect();
        for (part, done) in parts.iter().zip(all(ask(batches), false)?) {
            part.put(done.into_iter().map(Some), &mut outputs);
        }
        Ok(outputs.into_iter().flatten().collect())
    }

    /// Closes all connections. Those that are in use are closed after their call; further calls fail, of clones too.
    pub fn close(&self) {
        self.group.close();
    }

    /// What the client has done: how long calls took, errors, connections, breakers. It costs some microseconds for each
    /// server.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.group.metrics()
    }

    /// How many connections are open, or being opened, how many of these are idle, and how many threads wait for one.
    #[must_use]
    pub fn connections(&self) -> (usize, usize, usize) {
        self.group.connections()
    }
}

/// Wakes a thread that waits for another's computation.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Does an operation on each of several servers, in the order of the list, within the time that a call has. All are asked
/// before the first answer is waited for. As connections are taken in the order of the list, calls never wait for each
/// other's in a circle.
fn ask<'s, O: Operation>(
    operations: impl Iterator<Item = (&'s Server, O)>,
) -> Vec<Result<O::Output, Error>> {
    let now = Instant::now();
    let begun: Vec<_> = operations
        .map(|(server, mut operation)| {
            let begun = server.begin(&mut operation, now);
            (server, operation, begun)
        })
        .collect();
    let finish =
        |(server, mut operation, begun): (&'s Server, O, _)| server.finish(begun, &mut operation);
    begun.into_iter().map(finish).collect()
}
