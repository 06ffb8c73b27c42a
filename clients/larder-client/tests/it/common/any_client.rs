//! A client that is either blocking or for Tokio, so that one test can cover both kinds of clients.
#![allow(dead_code, unreachable_pub, reason = "several test programs include this module")]

use larder_client::metrics::Metrics;
use larder_client::ring::Hashing;
use larder_client::{
    Builder, Bytes, Client, ComputeError, CountOutcome, Discovery, Error, Failover, Item, Lease,
    PerServer, StoreOutcome, Ttl, blocking,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A blocking client, or a client for Tokio together with its runtime.
#[derive(Clone, Debug)]
pub enum AnyClient {
    Threads(blocking::Client),
    Tokio(Client, Arc<Runtime>),
}

/// A builder for either kind of client.
#[derive(Debug)]
pub enum AnyClientBuilder {
    Threads(Builder<blocking::Client>),
    Tokio(Builder<Client>),
}

/// Runs a test with each kind of client, first over pooled and then over shared connections. The
/// test receives a function that creates a builder for an address.
pub fn each_client(test: impl Fn(&dyn Fn(String) -> AnyClientBuilder)) {
    each_pool(&test);
    shared(&test);
}

/// Runs a test with each kind of client over shared connections.
pub fn shared(test: impl Fn(&dyn Fn(String) -> AnyClientBuilder)) {
    test(&|address| AnyClientBuilder::Threads(blocking::Client::builder(address).shared(2)));
    shared_by_tasks(test);
}

/// Runs a test with the client for Tokio over shared connections.
pub fn shared_by_tasks(test: impl Fn(&dyn Fn(String) -> AnyClientBuilder)) {
    test(&|address| AnyClientBuilder::Tokio(Client::builder(address).shared(2)));
}

/// Runs a test with each kind of client over pooled connections.
pub fn each_pool(test: impl Fn(&dyn Fn(String) -> AnyClientBuilder)) {
    test(&|address| AnyClientBuilder::Threads(blocking::Client::builder(address).connections(64)));
    test(&|address| AnyClientBuilder::Tokio(Client::builder(address).connections(64)));
}

macro_rules! settings {
    ($($name:ident: $type:ty),*) => {
        $(pub fn $name(self, value: $type) -> Self {
            match self {
                Self::Threads(builder) => Self::Threads(builder.$name(value)),
                Self::Tokio(builder) => Self::Tokio(builder.$name(value)),
            }
        })*
    };
}

impl AnyClientBuilder {
    settings!(
        timeout: Duration,
        connect_timeout: Duration,
        connections: usize,
        idle_time: Duration,
        lifetime: Duration,
        hashing: Hashing,
        failover: Failover,
        degrade: bool,
        discovery: Discovery,
        discovery_interval: Duration
    );

    pub fn login(self, user: &str, password: &str) -> Self {
        match self {
            Self::Threads(builder) => Self::Threads(builder.login(user, password)),
            Self::Tokio(builder) => Self::Tokio(builder.login(user, password)),
        }
    }

    pub fn build(self) -> Result<AnyClient, Error> {
        match self {
            Self::Threads(builder) => builder.build().map(AnyClient::Threads),
            Self::Tokio(builder) => {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                builder.build().map(|client| AnyClient::Tokio(client, Arc::new(runtime)))
            }
        }
    }
}

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) -> $output:ty;)*) => {
        $(pub fn $name(&self, $($arg: $type),*) -> Result<$output, Error> {
            match self {
                Self::Threads(client) => client.$name($($arg),*),
                Self::Tokio(client, runtime) => runtime.block_on(client.$name($($arg),*)),
            }
        })*
    };
}

impl AnyClient {
    calls! {
        get(key: impl AsRef<[u8]>) -> Option<Bytes>;
        gets(key: impl AsRef<[u8]>) -> Option<Item>;
        gat(key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Option<Item>;
        get_many(keys: &[impl AsRef<[u8]>]) -> Vec<Option<Item>>;
        gets_many(keys: &[impl AsRef<[u8]>]) -> Vec<Option<Item>>;
        set(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> StoreOutcome;
        set_with_flags(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>, flags: u32) -> StoreOutcome;
        add(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> StoreOutcome;
        replace(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> StoreOutcome;
        append(key: impl AsRef<[u8]>, more: impl AsRef<[u8]>) -> StoreOutcome;
        prepend(key: impl AsRef<[u8]>, more: impl AsRef<[u8]>) -> StoreOutcome;
        cas(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>, cas: u64) -> StoreOutcome;
        delete(key: impl AsRef<[u8]>) -> bool;
        delete_if(key: impl AsRef<[u8]>, cas: u64) -> bool;
        invalidate(key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> bool;
        touch(key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> bool;
        incr(key: impl AsRef<[u8]>, delta: u64) -> CountOutcome;
        decr(key: impl AsRef<[u8]>, delta: u64) -> CountOutcome;
        incr_or_create(key: impl AsRef<[u8]>, delta: u64, initial: u64, ttl: impl Into<Ttl>) -> CountOutcome;
        flush() -> ();
        versions() -> PerServer<String>;
        stats(topic: &str) -> PerServer<Vec<(String, String)>>;
    }

    pub fn update<V: AsRef<[u8]>>(
        &self,
        key: &str,
        ttl: impl Into<Ttl>,
        change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<V>, Error> {
        match self {
            Self::Threads(client) => client.update(key, ttl, change),
            Self::Tokio(client, runtime) => runtime.block_on(client.update(key, ttl, change)),
        }
    }

    pub fn get_or_compute<V: Into<Bytes>, E>(
        &self,
        key: &str,
        lease: Lease,
        compute: impl FnOnce() -> Result<V, E>,
    ) -> Result<Bytes, ComputeError<E>> {
        match self {
            Self::Threads(client) => client.get_or_compute(key, lease, compute),
            Self::Tokio(client, runtime) => {
                // The computation may block and use another client.
                let compute = async || tokio::task::block_in_place(compute);
                runtime.block_on(client.get_or_compute(key, lease, compute))
            }
        }
    }

    pub fn metrics(&self) -> Metrics {
        match self {
            Self::Threads(client) => client.metrics(),
            Self::Tokio(client, _) => client.metrics(),
        }
    }

    pub fn connections(&self) -> (usize, usize, usize) {
        match self {
            Self::Threads(client) => client.connections(),
            Self::Tokio(client, _) => client.connections(),
        }
    }

    pub fn close(&self) {
        match self {
            Self::Threads(client) => client.close(),
            Self::Tokio(client, _) => client.close(),
        }
    }
}
