//! The client for Tokio.

use super::server::Server;
use crate::builder::Builder;
use crate::calls::calls;
use crate::computing::{ComputeStep, Computing, as_item, as_value, computing};
use crate::core::endpoint::address::Address;
use crate::core::flight::{ComputePermit, FlightResult, FlightWaiter, JoinRole};
use crate::core::key::Key;
use crate::core::lease::{
    Lease, LeaseAnswer, LeaseGet, LeaseStep, StoreCondition, ends_call, pause,
};
use crate::core::operation::{
    Count, Delete, Flush, Get, GetMany, MetaProbe, Operation, Stats, Store, Touch, Version,
};
use crate::core::servers::server_set::ServerSet;
use crate::core::servers::{Rounds, ServerHandle, all, checked};
use crate::error::{ComputeError, Error};
use crate::item::{CountOutcome, Item, PerServer, StoreOutcome, StoreRequest, Ttl, new_item};
use crate::list::ServerList;
use crate::metrics::Metrics;
use bytes::Bytes;
use futures_util::future::join_all;
use larder_protocol::encode::{NewItem, WireKey};
use larder_protocol::{Exptime, StoreMode};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client that any number of tasks on one Tokio runtime may use. Clones share its connections.
///
/// A key has 1 to 250 bytes. The client sends a key with spaces or control characters in base64.
/// Such a key has at most 186 bytes, and needs a server with meta commands (memcached 1.6 or
/// later).
///
/// A program may drop a call's future at any time, for example after a timeout. The server may or
/// may not have made the requested change.
///
/// A call fails if its key or value is invalid, its server is unreachable, several faults in a row
/// have made the server unavailable, its deadline passes, or its connection fails. It also fails if
/// the server refuses the login or the request, sends an unexpected reply or reports an error, or
/// if the client is closed. [`ErrorKind`](crate::ErrorKind) lists all kinds of errors.
#[derive(Clone, Debug)]
pub struct Client {
    group: Arc<ServerSet<Server>>,
    computing: Computing,
}

impl Builder<Client> {
    /// Builds the client. Calls resolve names and open connections on demand. With spymemcached's
    /// hashing method, this function blocks while it resolves names. With
    /// [`discovery`](Builder::discovery), the function blocks until the first list of servers is
    /// available.
    ///
    /// # Errors
    /// An address or the login is invalid, a name cannot be resolved, a TLS file is unusable, no
    /// server has a weight above 0, or the hashing method does not support the weights. With
    /// discovery, the function also fails if discovery finds no list, or if the discovery thread
    /// cannot be spawned.
    pub fn build(self) -> Result<Client, Error> {
        let hashes_addresses = self.hashes_addresses();
        let resolve = move |address: &Address| match address {
            Address::Host(host, port) if hashes_addresses => {
                Ok((host.as_str(), *port).to_socket_addrs()?.collect())
            }
            Address::Host(host, port) => {
                let number = host.parse().map(|number: IpAddr| SocketAddr::new(number, *port));
                Ok(number.into_iter().collect())
            }
            Address::Unix(_) => Ok(Vec::new()),
        };
        Ok(Client {
            computing: Computing::new(self.time_max()),
            group: self.group(resolve, Server::new)?,
        })
    }
}

impl Client {
    /// Creates a client for these servers with default settings.
    ///
    /// # Errors
    /// An address is invalid, or no server has a weight above 0.
    pub fn connect(servers: impl Into<ServerList>) -> Result<Self, Error> {
        Self::builder(servers).build()
    }

    /// Returns a builder for a client of these servers.
    pub fn builder(servers: impl Into<ServerList>) -> Builder<Self> {
        Builder::new(servers)
    }

    calls!([async] [.await]);
    computing!([async] [.await] [F: FnOnce() -> Fut, Fut: Future<Output = Result<V, E>>]);

    /// Returns the value of an item as [`get_or_compute`](Self::get_or_compute) does, but
    /// recomputes an old value in the background.
    ///
    /// If there is an old value, every caller gets it at once, and one caller spawns a task that
    /// computes the new value. An old value exists, for example, after
    /// [`invalidate`](Self::invalidate), or if the lease sets [`Lease::early`] or [`Lease::stale`].
    /// Without an old value, this call computes the value itself. If the computation in the task
    /// fails, its error is dropped, and the old value stays until it expires.
    ///
    /// # Errors
    /// See [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Panics
    /// The call is outside of a Tokio runtime.
    pub async fn get_or_compute_in_background<V, E, F, Fut>(
        &self,
        key: impl AsRef<[u8]>,
        lease: Lease,
        compute: F,
    ) -> Result<Bytes, ComputeError<E>>
    where
        V: Into<Bytes>,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send,
        E: Send + 'static,
    {
        let compute = async || compute().await.map(Into::into);
        let key = Key::new(key.as_ref()).map_err(Error::from)?;
        match self.obtain(key, lease, as_value).await? {
            ComputeStep::Value(value) => Ok(value),
            ComputeStep::Compute(permit, None) => {
                self.finish(permit, key, lease, as_item, compute().await).await
            }
            ComputeStep::Compute(permit, Some(old)) => {
                let (client, key) = (self.clone(), Bytes::copy_from_slice(key.bytes()));
                tokio::spawn(async move {
                    let key = Key::new(&key).map_err(Error::from)?;
                    client.finish(permit, key, lease, as_item, compute().await).await
                });
                Ok(old)
            }
        }
    }

    async fn pause(&self, time: Duration) -> Result<(), Error> {
        tokio::time::sleep(time).await;
        Ok(())
    }

    async fn wait_for_flight(&self, waiting: FlightWaiter) -> Result<FlightResult, Error> {
        Ok(waiting.await)
    }

    async fn each<O: Operation>(
        &self,
        operation: impl Fn() -> O,
    ) -> Result<PerServer<O::Output>, Error> {
        let servers = self.group.servers();
        let list = &servers.list;
        let reads = operation().reads();
        let operations: Vec<O> = list.iter().map(|_| operation()).collect();
        let calls = list
            .iter()
            .zip(operations)
            .map(|(server, mut operation)| async move { server.call(&mut operation).await });
        let outputs = all(join_all(calls).await, reads)?;
        Ok(list.iter().map(|server| Arc::clone(server.name())).zip(outputs).collect())
    }

    async fn many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        cas: bool,
    ) -> Result<Vec<Option<Item>>, Error> {
        let (servers, now, checked) = (self.group.servers(), Instant::now(), checked(keys)?);
        let mut found = vec![None; keys.len()];
        let mut rounds = Rounds::new(&servers, checked, now);
        loop {
            let parts = rounds.parts();
            if parts.is_empty() {
                return Ok(found);
            }
            let calls = parts.iter().map(|part| async move {
                let admitted = part.server.admit(now);
                part.server.call_admitted(admitted, &mut GetMany::new(&part.keys, cas), now).await
            });
            let called = join_all(calls).await;
            let errors = rounds.settle(&parts, called, |part, items| part.put(items, &mut found));
            if let Some(error) = errors.into_iter().next() {
                return Err(error);
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

    /// Returns the numbers of open connections, idle connections, and calls that wait for a
    /// connection. With a pool, the first number includes connections that are being opened. With
    /// shared connections, the third number is always 0.
    #[must_use]
    pub fn connections(&self) -> (usize, usize, usize) {
        self.group.connections()
    }
}
