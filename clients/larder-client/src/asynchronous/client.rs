//! The client for Tokio.

use super::server::Server;
use crate::builder::Builder;
use crate::calls::calls;
use crate::computing::{Computing, Obtained, as_item, as_value, computing};
use crate::core::endpoint::address::Address;
use crate::core::flight::{Joined, Landed, Turn, Waiting};
use crate::core::key::Key;
use crate::core::lease::{Found, Lease, Look, Right, Seen, ends_call, pause};
use crate::core::operation::{
    Count, Delete, Flush, Get, GetMany, KnowsMeta, Operation, Stats, Store, Touch, Version,
};
use crate::core::servers::server_set::Group;
use crate::core::servers::{Member, all};
use crate::error::{ComputeError, Error};
use crate::item::{Counted, Item, PerServer, StoreRequest, Stored, Ttl, new_item};
use crate::list::ServerList;
use crate::metrics::Metrics;
use bytes::Bytes;
use futures_util::future::join_all;
use larder_protocol::encode::{NewItem, WireKey};
use larder_protocol::{Exptime, StoreMode};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client for any number of tasks of a Tokio runtime. Clones share its connections.
///
/// Keys have 1 to 250 bytes. Those with blanks or control characters are sent in base64, which needs a server that
/// knows meta commands (memcached 1.6 or later), and have 186 bytes at most.
///
/// The future of a call may be dropped at any time, as by a timeout of the program's own: nobody gets its answer. What
/// it asked for may have happened, or not.
///
/// The errors of all calls are: the server can't be reached or is left alone for a moment after many faults, the
/// deadline is over, the connection failed, the server refused the request or failed ([`ErrorKind`]).
#[derive(Clone, Debug)]
pub struct Client {
    group: Arc<Group<Server>>,
    computing: Computing,
}

impl Builder<Client> {
    /// The client. Names are looked up, and connections opened, when they are needed. (The hashing of spymemcached needs
    /// addresses: names are looked up here then, which blocks.)
    ///
    /// # Errors
    /// An address is none, or the hashing has no use for the weights.
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
    /// A client of these servers with default settings.
    ///
    /// # Errors
    /// The address is none.
    pub fn connect(servers: impl Into<ServerList>) -> Result<Self, Error> {
        Self::builder(servers).build()
    }

    /// Settings of a client of these servers.
    pub fn builder(servers: impl Into<ServerList>) -> Builder<Self> {
        Builder::new(servers)
    }

    calls!([async] [.await]);
    computing!([async] [.await] [F: FnOnce() -> Fut, Fut: Future<Output = Result<V, E>>]);

    /// Like [`get_or_compute`](Self::get_or_compute), but this caller, too, gets the old value if there is one, as after
    /// [`invalidate`](Self::invalidate) or with [`Lease::early`] and [`Lease::stale`]. The new one is computed by a task
    /// beside it; if the computation fails there, nobody is told, and the old value stays until its end.
    ///
    /// # Errors
    /// See [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
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
            Obtained::Value(value) => Ok(value),
            Obtained::Turn(turn, None) => {
                self.finish(turn, key, lease, as_item, compute().await).await
            }
            Obtained::Turn(turn, Some(old)) => {
                let (client, key) = (self.clone(), Bytes::copy_from_slice(key.bytes()));
                tokio::spawn(async move {
                    let key = Key::new(&key).map_err(Error::from)?;
                    client.finish(turn, key, lease, as_item, compute().await).await
                });
                Ok(old)
            }
        }
    }

    async fn pause(&self, time: Duration) -> Result<(), Error> {
        tokio::time::sleep(time).await;
        Ok(())
    }

    async fn landing(&self, waiting: Waiting) -> Result<Landed, Error> {
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
        let keys: Result<Vec<Key<'_>>, _> = keys.iter().map(|key| Key::new(key.as_ref())).collect();
        let keys = keys?;
        let mut found = vec![None; keys.len()];
        let servers = self.group.servers();
        let parts = servers.parts(&keys, Instant::now());
        let calls = parts
            .iter()
            .map(|part| async move { part.server.call(&mut GetMany::new(&part.keys, cas)).await });
        for (part, items) in parts.iter().zip(join_all(calls).await) {
            part.put(items?, &mut found);
        }
        Ok(found)
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

    /// How many connections are open, or being opened, how many of these are idle, and how many calls wait for one.
    #[must_use]
    pub fn connections(&self) -> (usize, usize, usize) {
        self.group.connections()
    }
}
