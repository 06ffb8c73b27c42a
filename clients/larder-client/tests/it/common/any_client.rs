//! A client of either kind, with the same calls: tests are written once for both.
#![allow(dead_code, unreachable_pub, reason = "it is a module of several tests")]

use larder_client::metrics::Metrics;
use larder_client::ring::Hashing;
use larder_client::{
    Builder, Bytes, Client, ComputeError, Counted, Discovery, Error, Failover, Item, Lease,
    PerServer, Stored, Ttl, blocking,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A client for threads, or one for Tokio with its runtime.
#[derive(Clone, Debug)]
pub enum Face {
    Threads(blocking::Client),
    Tokio(Client, Arc<Runtime>),
}

/// Settings of a client of either kind.
#[derive(Debug)]
pub enum FaceBuilder {
    Threads(Builder<blocking::Client>),
    Tokio(Builder<Client>),
}

/// Runs a test with each kind of client. What it gets makes a builder for an address.
pub fn each_face(test: impl Fn(&dyn Fn(String) -> FaceBuilder)) {
    each_pool(&test);
    shared(&test);
}

/// Runs a test with each kind of client whose calls share connections.
pub fn shared(test: impl Fn(&dyn Fn(String) -> FaceBuilder)) {
    test(&|address| FaceBuilder::Threads(blocking::Client::builder(address).shared(2)));
    shared_by_tasks(test);
}

/// Runs a test with the client for Tokio whose calls share connections.
pub fn shared_by_tasks(test: impl Fn(&dyn Fn(String) -> FaceBuilder)) {
    test(&|address| FaceBuilder::Tokio(Client::builder(address).shared(2)));
}

/// Runs a test with each kind of client that has a pool.
pub fn each_pool(test: impl Fn(&dyn Fn(String) -> FaceBuilder)) {
    test(&|address| FaceBuilder::Threads(blocking::Client::builder(address).connections(64)));
    test(&|address| FaceBuilder::Tokio(Client::builder(address).connections(64)));
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

impl FaceBuilder {
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

    pub fn build(self) -> Result<Face, Error> {
        match self {
            Self::Threads(builder) => builder.build().map(Face::Threads),
            Self::Tokio(builder) => {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                builder.build().map(|client| Face::Tokio(client, Arc::new(runtime)))
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

impl Face {
    calls! {
        get(key: impl AsRef<[u8]>) -> Option<Bytes>;
        gets(key: impl AsRef<[u8]>) -> Option<Item>;
        gat(key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Option<Item>;
        get_many(keys: &[impl AsRef<[u8]>]) -> Vec<Option<Item>>;
        gets_many(keys: &[impl AsRef<[u8]>]) -> Vec<Option<Item>>;
        set(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Stored;
        set_with_flags(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>, flags: u32) -> Stored;
        add(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Stored;
        replace(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Stored;
        append(key: impl AsRef<[u8]>, more: impl AsRef<[u8]>) -> Stored;
        prepend(key: impl AsRef<[u8]>, more: impl AsRef<[u8]>) -> Stored;
        cas(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: impl Into<Ttl>, cas: u64) -> Stored;
        delete(key: impl AsRef<[u8]>) -> bool;
        delete_if(key: impl AsRef<[u8]>, cas: u64) -> bool;
        invalidate(key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> bool;
        touch(key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> bool;
        incr(key: impl AsRef<[u8]>, delta: u64) -> Counted;
        decr(key: impl AsRef<[u8]>, delta: u64) -> Counted;
        incr_or_create(key: impl AsRef<[u8]>, delta: u64, initial: u64, ttl: impl Into<Ttl>) -> Counted;
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
                // It may block, and ask by another face.
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
